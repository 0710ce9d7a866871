// Two Go clients at work. `copy SERVERS FROM TO COUNT` copies records exactly once with franz-go: a group, and a
// transaction for each poll. `lag SERVERS GROUP TOPIC` asks with sarama what kafka_exporter asks, and prints a line for
// each partition: its number, the committed offset, the end, and the number of replicas in sync. `share SERVERS GROUP TOPIC`
// reads with franz-go as a member of a group of the consumer protocol.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers := strings.Split(os.Args[2], ",")
	var err error
	switch os.Args[1] {
	case "copy":
		count, _ := strconv.Atoi(os.Args[5])
		err = copyRecords(servers, os.Args[3], os.Args[4], count)
	case "lag":
		err = printLag(servers, os.Args[3], os.Args[4])
	case "share":
		err = shareTopic(servers, os.Args[3], os.Args[4])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func copyRecords(servers []string, from, to string, count int) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(servers...),
		kgo.TransactionalID("copier"),
		kgo.TransactionTimeout(20*time.Second),
		kgo.ConsumerGroup("copiers"),
		kgo.ConsumeTopics(from),
		kgo.DefaultProduceTopic(to),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for copied := 0; copied < count; {
		fetched := session.PollRecords(context.Background(), 200)
		if err := session.Begin(); err != nil {
			return err
		}
		records := 0
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetched.EachRecord(func(record *kgo.Record) {
			records++
			session.Produce(context.Background(), &kgo.Record{Value: record.Value}, promise.Promise())
		})
		failed := promise.Err()
		committed, err := session.End(context.Background(), failed == nil)
		if err != nil {
			return err
		}
		if committed {
			copied += records
		} else {
			fmt.Println("aborted", records, failed)
		}
	}
	fmt.Println("done")
	return nil
}

func printLag(servers []string, group, topic string) error {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	client, err := sarama.NewClient(servers, config)
	if err != nil {
		return err
	}
	defer client.Close()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	groups, err := admin.ListConsumerGroups()
	if err != nil {
		return err
	}
	if _, isKnown := groups[group]; !isKnown {
		return fmt.Errorf("the group %s is not among %v", group, groups)
	}
	described, err := admin.DescribeTopics([]string{topic})
	if err != nil {
		return err
	}
	numbers, err := client.Partitions(topic)
	if err != nil {
		return err
	}
	committed, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: numbers})
	if err != nil {
		return err
	}
	for _, partition := range described[0].Partitions {
		end, err := client.GetOffset(topic, partition.ID, sarama.OffsetNewest)
		if err != nil {
			return err
		}
		fmt.Println(partition.ID, committed.GetBlock(topic, partition.ID).Offset, end, len(partition.Isr))
	}
	return nil
}
