package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

// shareTopic reads a topic as a member of a group of the consumer protocol (KIP-848), and commits after each poll.
// SIGTERM lets it leave. It prints a JSON list a line: partitions that it got or gave up, records, refused commits.
func shareTopic(servers []string, group, topic string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	printed := func(kind string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			numbers := append([]int32{}, partitions[topic]...)
			sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
			printLine(kind, numbers)
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.ServerSideBalancer(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(printed("assigned")),
		kgo.OnPartitionsRevoked(printed("revoked")),
		kgo.OnPartitionsLost(printed("revoked")),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
		fetched := client.PollRecords(ctx, 200)
		fetched.EachRecord(func(record *kgo.Record) {
			printLine("record", record.Partition, record.Offset, string(record.Value))
		})
		if fetched.NumRecords() > 0 {
			if err := client.CommitRecords(ctx, fetched.Records()...); err != nil {
				printLine("refused", err.Error())
			}
		}
	}
	return nil
}

func printLine(event ...any) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stdout, string(line))
}
