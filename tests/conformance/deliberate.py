"""Deliberate differences from Apache Kafka, with reasons. docs/compatibility.md lists them, and tests allow them.

A test checks that each rule of `DELIBERATE` still matches a difference.
"""

from __future__ import annotations

import re

import attrs


@attrs.frozen
class Deliberate:
    """Differences between Kafka and this server whose text (`CASE: PATH: Kafka ..., here ...`) matches `pattern`."""

    api: str
    pattern: str
    kafka: str
    """A sentence about Kafka's behaviour."""
    here: str
    reason: str

    def covers(self, difference: str) -> bool:
        """True if this rule is about the difference."""
        return re.search(self.pattern, difference) is not None


DELIBERATE = (
    Deliberate(
        "CreateDelegationToken",
        r"^create_delegation_token for others: \[8\]",
        "answers an owner without a type with UNKNOWN_SERVER_ERROR",
        "a token for an owner whose type is empty, as if the type were an empty text",
        "In Kafka it is an exception on the way.",
    ),
    Deliberate(
        "AlterClientQuotas",
        r"^alter_client_quotas by values that mean nothing: .*(Kafka 0, here 42|must be greater than 0)",
        "takes a quota that is not a number (NaN)",
        "INVALID_REQUEST, as for a quota that is not greater than 0",
        "Nothing can be compared with it.",
    ),
    Deliberate(
        "IncrementalAlterConfigs",
        r"^incremental_alter_configs of .*: (an unknown|a negative) operation: .*(Kafka -1, here 42|Kafka null, here)",
        "answers an operation that it does not know with UNKNOWN_SERVER_ERROR, except for a broker",
        "INVALID_REQUEST with the text that Kafka has for a broker",
        "In Kafka it is an exception on the way; a client should learn what is wrong.",
    ),
    Deliberate(
        "Produce",
        r"^write_txn_markers after appends with other acks: ",
        "appends a transactional batch with any acks",
        "INVALID_REQUIRED_ACKS unless they are `all`",
        "A transaction could commit what its leader has lost. Clients demand `all` themselves.",
    ),
    Deliberate(
        "WriteTxnMarkers, InitProducerId",
        r"^write_txn_markers with the highest producer epoch, client \d: \[2[01]\]",
        "leaves a transactional id in PrepareCommit or PrepareAbort for ever, once a partition has seen a higher epoch of "
        "its producer",
        "unless something is open in that partition, the transaction ends, its producer is fenced, and the next one gets a "
        "new producer id",
        "Such an epoch comes from an admin client's marker, which has ended the transaction in that partition.",
    ),
    Deliberate(
        "Produce",
        r"^produce v\d+ of a transactional batch beside others without a transactional id: ",
        "refuses a whole request without a transactional id in which one batch is transactional",
        "refuses that batch; the others are appended",
        "To look at all batches before the first append would cost every producer time. No client mixes them.",
    ),
    Deliberate(
        "Produce, TxnOffsetCommit",
        r"^produce v\d+ of odd transactions: \[[467]\]",
        "takes a batch for an open transaction under any transactional id, or an empty one",
        "INVALID_PRODUCER_ID_MAPPING unless the producer id belongs to it, INVALID_REQUEST for an empty one",
        "Another's producer id is no secret. `transaction.partition.verification.enable=false` gives Kafka's answer.",
    ),
    Deliberate(
        "DescribeTopicPartitions",
        r"^describe_topic_partitions of topics that cannot be: \[1\]",
        "answers an empty topic name with UNKNOWN_SERVER_ERROR",
        "INVALID_TOPIC_EXCEPTION, as for other bad names",
        "In Kafka it is an exception on the way.",
    ),
    Deliberate(
        "AddRaftVoter, RemoveRaftVoter, DescribeQuorum",
        r"^(add|remove)_raft_voter .*(Kafka 35|kraft.version|for the default listener)|replica_directory_id: Kafka .none.",
        "keeps voters that `controller.quorum.voters` names at `kraft.version` 0: without directory ids, and for ever",
        "a node that is named alone begins at `kraft.version` 1: its voters are in the log and can be changed",
        "A lone node can grow into a quorum then. Several static voters are at `kraft.version` 0, as in Kafka.",
    ),
    Deliberate(
        "AlterPartitionReassignments",
        r"^alter_partition_reassignments names a partition twice: \[0\]",
        "takes a partition that is named twice in a topic twice",
        "INVALID_REQUEST for the second",
        "Which of the two holds should not hang on their order.",
    ),
    Deliberate(
        "UpdateFeatures",
        r"^update_features .*Local controller",
        "names the id of the controller that does not support a level, and the levels of all its releases",
        "no id; supports the levels of this release",
        "The answer should not hang on which controller is active.",
    ),
    Deliberate(
        "Fetch",
        r"^fetch within limits of bytes: \[1[89]\]",
        "answers a negative `partition_max_bytes` with UNKNOWN_SERVER_ERROR",
        "is a limit like 0: one batch",
        "In Kafka it is an exception on the way; a client gets nowhere with it.",
    ),
    Deliberate(
        "Fetch",
        r"^fetch at isolation level (2|-1): ",
        "answers an isolation level that is none with UNKNOWN_SERVER_ERROR, in a form that depends on the version",
        "reads up to the high watermark, as for level 0",
        "In Kafka it is an exception on the way.",
    ),
    Deliberate(
        "Metadata",
        r"^metadata by id: \[[38]\]",
        "answers a topic of empty name and zero id with UNKNOWN_SERVER_ERROR, and from version 13 on with that alone",
        "UNKNOWN_TOPIC_ID for that topic, the brokers as ever",
        "In Kafka it is an exception on the way; the brokers are what a client needs most.",
    ),
)


@attrs.frozen
class Remark:
    """A difference that is not visible in the answers to single requests."""

    subject: str
    text: str


@attrs.frozen
class OverBudget:
    """A limit on the work for one request, and the answer to requests beyond it."""

    apis: str
    limit: str
    gets: str


OVER_BUDGET = (
    OverBudget(
        "every API",
        "40,000 elements of arrays, nested ones included, and tagged fields that nobody knows",
        "the connection closes; Kafka takes what fits into `socket.request.max.bytes`",
    ),
    OverBudget("every API", "1,000 tagged fields in a request's header", "the connection closes"),
    OverBudget(
        "CreateTopics, DeleteTopics, CreatePartitions, AlterPartitionReassignments, ListPartitionReassignments, "
        "ElectLeaders, UpdateFeatures, AlterConfigs, IncrementalAlterConfigs",
        "20,000 things that it names: topics, keys, partitions, resources; replicas are not counted",
        "POLICY_VIOLATION for all of them",
    ),
    OverBudget("ConsumerGroupHeartbeat", "5,000 topics that a member names", "INVALID_REQUEST"),
    OverBudget(
        "OffsetCommit, TxnOffsetCommit",
        "offsets whose records are larger than one append to `__consumer_offsets` may be",
        "INVALID_COMMIT_OFFSET_SIZE for all of them, where Kafka 4.3 answers UNKNOWN_SERVER_ERROR",
    ),
)
"""Limits on requests that would take a node too long to decode or to decide.

`NOT_SEEN` lists all other limits.
"""

NOT_SEEN = {
    "Connections and requests": (
        Remark(
            "A broker that passes a change on to the controller",
            "answers when its own image has it, or half a second later. That goes for topics, partitions, configurations, "
            "rights, quotas and users. A client that asks the same broker at once finds the change there. Kafka answers "
            "before, and the client may have to ask again.",
        ),
        Remark(
            "Metadata and FindCoordinator, just after a leader has died.",
            "A broker that has lost its own connection to this leader waits for the successor, for three quarters of a second "
            "at most. Later requests of the same connection wait as long. Metadata mentions a broker that has died or stopped "
            "in order for two more seconds. Kafka names the dead leader until its session ends. After each such answer, "
            "librdkafka would ask again only a second later (`data_plane/replication/following/departures.py`).",
        ),
        Remark(
            "Several requests of one connection",
            "are in progress at once, where Kafka handles one at a time. Answers keep the order of the "
            "requests. With five fetches parked, or 4 MiB of answers behind one that waits, the connection "
            "is not read on until there is room. All connections together hold 64 MiB of such answers. Beyond that, "
            "a connection with more than 64 KiB of them is not read on. It is closed if it holds them for ten "
            "seconds.",
        ),
        Remark(
            "A request of which only a part has come",
            "is given up once another has waited for memory for five seconds. That memory is `queued.max.request.bytes`, "
            "256 MiB where it is unset. The slowest of the address that holds the most goes first. A "
            "quarter of that memory is for requests up to 2 MiB alone, and the brokers' own listener has as "
            "much again. Kafka lets everybody wait.",
        ),
        Remark(
            "`socket.send.buffer.bytes`",
            "is 256 KiB unless the file sets it (Kafka: 100 KiB), and the receive buffer is left to the kernel: measured.",
        ),
        Remark(
            "Partitions of a topic that has just been created",
            "by the dozen may answer NOT_LEADER_OR_FOLLOWER while their logs are made. So it is in Kafka.",
        ),
        Remark(
            "OffsetFetch, DescribeGroups, DescribeConfigs and DescribeProducers",
            "answer for one thing as often as a request names it, up to about 2 MiB of such repetitions. What is named "
            "again beyond that gets INVALID_REQUEST. Kafka builds whatever a small request that names one group a "
            "thousand times "
            "asks for.",
        ),
    ),
    "Writing and reading": (
        Remark(
            "A Produce into `__consumer_offsets` or `__transaction_state`",
            "gets INVALID_TOPIC_EXCEPTION. Kafka takes it from each client that calls itself `__admin_client`.",
        ),
        Remark(
            "A coordinator with as many transactional ids",
            "as `odradek.transactional.ids.max.per.partition` allows answers a new one with COORDINATOR_NOT_AVAILABLE. A "
            "transaction that wants 8 partitions or more gets the same. The client asks again. Kafka has no such limit.",
        ),
        Remark(
            "A regular expression of a client",
            "that would take longer than some 10 ms to read, by an estimate, gets INVALID_REGULAR_EXPRESSION. It would hold "
            "up all other clients. ConsumerGroupHeartbeat and ListTransactions have such patterns. Kafka reads each.",
        ),
        Remark(
            "A coordinator with as many members of consumer groups",
            "as `odradek.group.consumer.members.max.per.partition` allows answers a further one with "
            "GROUP_MAX_SIZE_REACHED. Kafka bounds each group alone, by `group.consumer.max.size`.",
        ),
        Remark(
            "Records of a batch",
            "are parsed only where the topic is compacted or bounds old timestamps "
            "(`message.timestamp.before.max.ms`). They are also parsed where the timestamps in the header contradict "
            "each other or the topic's bounds. A batch whose records contradict each other, but whose header, CRC and "
            "compression are sound, is accepted. The header must not count more records than the bytes can hold "
            "(INVALID_RECORD).",
        ),
        Remark(
            "A batch header's largest timestamp",
            "is set from the records at the append only where they are parsed. Kafka does so for each batch. Some "
            "clients leave it unset (-1, as Sarama did), which counts as a contradiction. Another wrong one is stored "
            "as it came, and a consumer that reads headers sees it. Retention by age, ListOffsets by time and "
            "`min.compaction.lag.ms` go by the records all the same: they are walked once before such a decision. Four "
            "things still hang on the header alone. A segment may be rolled sooner or later than `segment.ms` says. "
            "Records from the future, under a header that says otherwise, may go `retention.ms` after they were "
            "written. A look-up may miss them, too. Records that are older than their header says stay until that time "
            "has passed. One ListOffsets request walks over 512 MiB at most; beyond that it believes headers, and the "
            "next one walks on.",
        ),
        Remark(
            "A gzip or lz4 batch with bytes behind",
            "the first member or frame gets INVALID_RECORD. Kafka takes it if its records end before them.",
        ),
        Remark(
            "The batches of one Produce request",
            "may decompress to 128 MiB and to 16 times their size besides, one of them to 128 MiB. Where a rule "
            "needs each record "
            "(compacted topics, bad timestamps), 262,144 of them are looked at, and one for every 16 bytes besides. "
            "Partitions beyond "
            "that get MESSAGE_TOO_LARGE; Kafka has no such bound.",
        ),
        Remark(
            "The first batch of an open transaction after a change of leader",
            "is verified with the coordinator once more. The log does not say for which transactional id it was.",
        ),
        Remark(
            "A transactional batch that repeats one from outside of an open transaction",
            "gets OUT_OF_ORDER_SEQUENCE_NUMBER. In Kafka it is acknowledged: a record is lost if a stranger has "
            "used its sequence number. `transaction.partition.verification.enable=false` gives Kafka's answer.",
        ),
        Remark(
            "An InitProducerId, an AddPartitionsToTxn or an AddOffsetsToTxn while a transaction is ended",
            "waits for its markers, for 500 ms at most. Kafka answers CONCURRENT_TRANSACTIONS at once, and the client "
            "asks again after a pause that is mostly longer.",
        ),
        Remark(
            "InitProducerId 6",
            "(two-phase commit, KIP-939) is advertised where `transaction.two.phase.commit.enable` is true. Kafka 4.3 "
            "serves that version with unstable APIs only.",
        ),
        Remark(
            "An empty AddPartitionsToTxn of version 4 or 5",
            "is answered; Kafka 4.3 never answers it.",
        ),
        Remark(
            "A DescribeTransactions that names a transaction again and again",
            "gets it up to about 2 MiB of repetitions. What is named again beyond that gets INVALID_REQUEST.",
        ),
        Remark(
            "A Produce with null records",
            "gets INVALID_RECORD; Kafka 4.3 never answers it.",
        ),
        Remark(
            "ListOffsets by time",
            "goes through no batch of more than 262,144 records (INVALID_RECORD). One request at a time looks on a "
            "disk; when "
            "64 wait for it, the next gets OFFSET_NOT_AVAILABLE (before version 5 LEADER_NOT_AVAILABLE) and asks again.",
        ),
        Remark(
            "A follower that has started",
            "serves consumers (KIP-392) only after its leader has agreed with its log once, which takes one fetch of "
            "its own. Until then it answers OFFSET_NOT_AVAILABLE. Kafka's takes its checkpoint for the high "
            "watermark, which after a loss of power may "
            "speak of records that were never committed.",
        ),
    ),
    "Groups": (
        Remark(
            "A member that joins with more metadata than its group's record can hold",
            "(1 MiB for all its protocols together) gets UNKNOWN_SERVER_ERROR at once. Kafka finds out when it writes the "
            "record, and has the same error for it. Of a subscription only the topics are read.",
        ),
        Remark(
            "A static member that returns with more metadata than its group's record can hold",
            "gets UNKNOWN_SERVER_ERROR before anything is written. Where all static members ask for no rebalance timeout, "
            "the coordinator looks for them once a second.",
        ),
        Remark(
            "A group that changes its protocol",
            "keeps the time at which each member's session ends. Kafka starts all sessions anew. So there a silent member "
            "stays, with its partitions, while another one joins and leaves again and again.",
        ),
        Remark(
            "A group member with broken metadata",
            "of the protocol type `consumer` is a member like others. In Kafka 4.3 the rebalance of its group does not end.",
        ),
    ),
    "Topics and what the controller decides": (
        Remark(
            "CreatePartitions by more than 10,000",
            "is refused with POLICY_VIOLATION, like CreateTopics. Kafka 4.3 answers with UNKNOWN_SERVER_ERROR and creates "
            "10,000 of them.",
        ),
        Remark(
            "A request to the controller that names more than 20,000 things",
            "gets POLICY_VIOLATION for all of them. Topics, partitions, resources and configurations count; replicas "
            "do not. Kafka refuses so what would write more than 10,000 records, after it has looked at everything.",
        ),
        Remark(
            "A request to the controller about hundreds of things",
            "is decided in parts, one after the other, so that it holds nobody up. If the controller dies halfway, "
            "what it has "
            "committed stays, and the rest is asked again of the next one. Kafka's CreateTopics and CreatePartitions "
            "are all "
            "or nothing then.",
        ),
    ),
    "Configurations": (
        Remark(
            "Listeners, their security and plugins",
            "(`listeners`, `listener.*`, `ssl.engine.factory.class`, `principal.builder.class`, `config.providers`, "
            "`metric.reporters`) cannot be changed while a node runs, but for the limits and certificates of single "
            "listeners. What docs/configuration.md calls refused gets INVALID_REQUEST.",
        ),
        Remark(
            "`controlled.shutdown.max.retries` and `controlled.shutdown.retry.backoff.ms`,",
            "which Kafka dropped with version 4, are taken. They say how often and how far apart a stopping broker "
            "asks a silent controller.",
        ),
        Remark(
            "Files of certificates",
            "are followed without a request (docs/security.md). Kafka reads them again when a value of theirs is set.",
        ),
        Remark(
            "A controller judges the values of brokers",
            "by type and valid values when it is asked at its own listener (INVALID_CONFIG); Kafka's takes any text.",
        ),
        Remark(
            "An AlterConfigs that names a resource twice",
            "gets INVALID_REQUEST for both, like an IncrementalAlterConfigs; Kafka 4.3 never answers it.",
        ),
        Remark(
            "A broker named `01` or `+1`",
            "is broker 1. Kafka stores its settings under that name, where nobody looks.",
        ),
        Remark(
            "An answered change of a configuration",
            "holds from the next request on; a Kafka broker learns of it a moment later.",
        ),
    ),
    "Disks and replicas": (
        Remark(
            "A disk that is full or does not answer",
            "stays online. (Kafka takes a full one offline, and waits for one that hangs.) Writes get "
            "KAFKA_STORAGE_ERROR. After a few seconds a replica elsewhere leads, if one is in sync (docs/disks.md). "
            "Brokers report it in the "
            "configuration `odradek.troubled.log.dirs` of their own, which DescribeConfigs shows while it is set.",
        ),
        Remark(
            "A replica that has rotted on its disk",
            "is replaced while other replicas are in sync. (Kafka serves the bytes on, and its followers stop "
            "there.) When a "
            "follower cannot take what its leader sends, the leader checks its own file. It gives up the lead by assigning "
            "the replica to the directory id LOST (KIP-858), renames the log to `-stray` and fetches everything "
            "anew. The log "
            "says `log.rotten` with file, position and offset, then `partition.set_aside`. For the controller a "
            "replica that "
            "is LOST while others are in sync is no eligible leader either. The last replica in sync keeps its log, "
            "leads on, "
            "and says `log.rotten_and_the_last_in_sync`.",
        ),
        Remark(
            "A replica on a disk that took the place of another",
            "is empty, and no clean election finds it (`unclean.leader.election.enable=false`). Kafka elects it "
            "where it was the "
            "last known leader, and the other replicas are cut to nothing. Here such a partition waits for an "
            "operator. An unclean election looks at this replica last, since the controller moves it to the end of "
            "the assignment.",
        ),
        Remark(
            "When all replicas in sync lose power",
            "the one with the longest log leads, once all of them are back or `unclean.recovery.timeout.ms` is over "
            "(KIP-966). Kafka 4.3 takes the last known leader as soon as it is back. So does a cluster here in which "
            "some controller, or a broker of the partition, is Apache Kafka's. While such a partition waits, "
            "DescribeTopicPartitions may list several replicas as `last_known_elr`; Kafka lists one.",
        ),
        Remark(
            "A broker that comes back from a clean stop",
            "keeps its place in ISRs until the other members have sent heartbeats. Brokers whose sessions end at the "
            "same time leave ISRs together. In Kafka they leave one after the other. So the first of them is passed "
            "over, even if it alone has everything.",
        ),
        Remark(
            "A bit flip below the recovery point",
            "of a data log is not looked for at start. `odradek log dump --verify` finds it, and so does every client that "
            "checks CRCs.",
        ),
        Remark(
            "A wall clock that jumps",
            "is believed when it has kept its new time for `log.retention.check.interval.ms`. Until then its new time "
            "deletes no records, committed offsets, transactional ids, tombstones or delegation tokens. Kafka's next look "
            "deletes by the new time. Meanwhile a token or certificate that has expired by either time lets nobody in.",
        ),
        Remark(
            "The timeout of a transaction",
            "is measured by the coordinator's monotonic clock, as far as it has seen the transaction begin. In Kafka a jump "
            "of the wall clock aborts open transactions, or keeps them open for as long as it went back.",
        ),
    ),
    "Client metrics": (
        Remark(
            "Subscriptions",
            "(KIP-714) are served without a plugin. The node itself reads what clients push (docs/metrics.md).",
        ),
        Remark(
            "The patterns of a subscription's `match`",
            "are those of RE2, which knows neither looking around nor back references. Kafka takes Java's. Other patterns get "
            "INVALID_CONFIG.",
        ),
        Remark(
            "A push",
            "that is no OTLP gets INVALID_RECORD. It may inflate to 16 times `telemetry.max.bytes`, to 32 MiB at most, and have "
            "100,000 fields. Above that it gets TELEMETRY_TOO_LARGE. In Kafka all this is the plugin's affair.",
        ),
        Remark(
            "Client instances",
            "are kept for 5,000 clients of a broker; Kafka keeps 16,384. One that is dropped loses nothing.",
        ),
    ),
    "Quotas": (
        Remark(
            "A quota of an address",
            "takes IP addresses alone. Kafka also takes names of hosts, and asks DNS for them. A connection beyond the "
            "quota is closed at once; Kafka keeps it open for a while before.",
        ),
        Remark(
            "`request_percentage`",
            "counts processor time: 100 is one core. Kafka counts the time of its threads, of which it has many. Here about "
            "200 is all that a broker has: a larger value, which may mean something in Kafka, holds nobody back.",
        ),
        Remark(
            "A client that has used up its quota",
            "waits until the excess is repaid, so its rate is the quota. Kafka compares a rate over the last windows with the "
            "quota, and lets some more through. A change of a quota ends the waits; in Kafka they last as long as before.",
        ),
    ),
    "Security": (
        Remark(
            "A client certificate that no authority here has signed",
            "is refused with TLS alert 48, `unknown_ca` (RFC 8446, section 6.2). Java sends alert 42, `bad_certificate`.",
        ),
        Remark(
            "A delegation token",
            "is known to the controller as soon as it is made; in Kafka a renewal may not find it for a moment. It may have "
            "20 renewers, with 4,096 bytes in all, and its owner 1,000 tokens; above that POLICY_VIOLATION. A controller answers "
            "DescribeDelegationToken, which Kafka's advertises and fails at. A token that has expired is refused at "
            "the login; Kafka answers the login well, and closes the connection at its first request.",
        ),
        Remark(
            "ACLs without an authorizer",
            "(`authorizer.class.name` is empty) let a node start only with `odradek.start.without.acls=true`. ACLs that "
            "arrive while it runs (from Kafka's controllers) end no node. It logs the error `rules.not_enforced`, and asks "
            "at its next start.",
        ),
    ),
    "Commands": (
        Remark(
            "`odradek storage format` of a controller whose file names no other",
            "may leave `--standalone` out. Where others are named, it asks for one of Kafka's three options, as "
            "`kafka-storage` does. `--feature kraft.version` is refused, since the level follows from them.",
        ),
        Remark(
            "`odradek storage format --cluster-id`",
            "takes any text, as Kafka's tool does, but for an empty one, and one of more than 32,767 bytes. Letters that are "
            "not ASCII are escaped in `meta.properties`. Kafka writes them as UTF-8 and reads Latin-1: its nodes then know "
            "the cluster by other letters. Such a file is read here as Kafka reads it.",
        ),
        Remark(
            "`odradek storage format` of a file that a start refuses",
            "succeeds with a warning where Kafka's tool takes the file, too. Such a file names certificates, passwords or users "
            "that are still missing, classes of Java, or features that are not built.",
        ),
    ),
}
"""Remarks, by the subject for which a client or an operator looks."""


@attrs.frozen
class NotServed:
    """APIs of Kafka 4.3 that Kafka, this server, or both of them do not advertise in the corpus."""

    keys: tuple[int, ...]
    what: str
    until: str
    needs_plugin: bool = False
    """True if this server offers them, and Kafka only with a plugin."""


NOT_SERVED = (
    NotServed(
        (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82),
        "the quorum, registration, replication's decisions",
        "for the controllers' listener, as in Kafka",
    ),
    NotServed((71, 72), "client telemetry", "in Kafka by a plugin alone", needs_plugin=True),
    NotServed((76, 77, 78, 79, *range(83, 93)), "share groups, streams groups", "not planned"),
)
