"""Questions about records, groups and transactions. An import of this module registers them."""

from __future__ import annotations

from typing import Any

from odradek.wire.messages import add_partitions_to_txn as adding
from odradek.wire.messages import fetch, list_offsets, metadata
from odradek.wire.messages import offset_commit as committing
from odradek.wire.messages import offset_fetch as fetching
from odradek.wire.messages import offset_for_leader_epoch as epochs
from odradek.wire.messages import produce as producing
from odradek.wire.messages import txn_offset_commit as txn_committing
from odradek.wire.messages import write_txn_markers as markers
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.list_groups import ListGroupsRequest
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.structure import ZERO_UUID
from tests.conformance.acls.question import NOBODYS, Names, ask
from tests.conformance.asking.batches import batch


def _produce(n: Names, named: str | None, by_id: bool) -> Any:
    def data(name: str, topic_id: bytes) -> Any:
        part = [producing.PartitionProduceData(0, batch(1))]
        return producing.TopicProduceData("" if by_id else name, topic_id if by_id else ZERO_UUID, part)

    return producing.ProduceRequest(
        named, -1, 5_000, [data(n.known, n.known_id), data(n.other, n.other_id), data(n.absent, NOBODYS)]
    )


ask("produce", (9,), lambda n: _produce(n, None, False), "WRITE known", "WRITE absent", "READ other")
ask("produce", (13,), lambda n: _produce(n, None, True), "WRITE known", "WRITE other", "DESCRIBE other")


def _fetch(n: Names, by_id: bool, replica: int) -> Any:
    def topic(name: str, topic_id: bytes) -> Any:
        parts = [fetch.FetchPartition(0, -1, 0, -1, -1, 1_000)]
        return fetch.FetchTopic("" if by_id else name, topic_id if by_id else ZERO_UUID, parts)

    topics = [topic(n.known, n.known_id), topic(n.other, n.other_id), topic(n.absent, NOBODYS)]
    state = fetch.ReplicaState(replica, -1)
    return fetch.FetchRequest(None, replica, state, 0, 0, 100_000, 0, 0, -1, topics, [], "")


ask("fetch", (12,), lambda n: _fetch(n, False, -1), "READ known", "READ absent", "DESCRIBE other")
ask("fetch", (17,), lambda n: _fetch(n, True, -1), "READ known", "READ other", "WRITE other")
ask("fetch as a follower", (12,), lambda n: _fetch(n, False, 7), "READ known")
ask("fetch as a follower", (17,), lambda n: _fetch(n, True, 7), "READ known")


def _offsets(n: Names) -> Any:
    parts = [list_offsets.ListOffsetsPartition(0, -1, -1)]
    topics = [list_offsets.ListOffsetsTopic(name, parts) for name in (n.known, n.other, n.absent)]
    return list_offsets.ListOffsetsRequest(-1, 0, topics)


ask(
    "list_offsets", (1, 7), _offsets, "DESCRIBE known", "READ other", "ALTER_CONFIGS known", "DESCRIBE absent"
)


def _metadata(n: Names, creates: bool, operations: bool = False) -> Any:
    named = [metadata.MetadataRequestTopic(ZERO_UUID, name) for name in (n.known, n.other, n.absent)]
    return metadata.MetadataRequest(named, creates, operations, operations)


ask("metadata", (1, 9), lambda n: _metadata(n, False), "DESCRIBE known", "READ other", "DESCRIBE absent")
ask(
    "metadata with operations",
    (8, 12),
    lambda n: _metadata(n, False, True),
    *("DESCRIBE known", "ALTER other", "DESCRIBE cluster", "DESCRIBE absent"),
)
ask(
    "metadata that creates",
    (12,),
    lambda n: _metadata(n, True, True),
    *("DESCRIBE absent", "CREATE absent", "CREATE cluster"),
    changes=True,
)


def _metadata_by_id(n: Names) -> Any:
    ids = [metadata.MetadataRequestTopic(each, None) for each in (n.known_id, n.other_id, NOBODYS)]
    return metadata.MetadataRequest(ids, False)


ask("metadata by id", (12,), _metadata_by_id, "DESCRIBE known", "WRITE other")


def _commit(n: Names, by_id: bool) -> Any:
    part = [committing.OffsetCommitRequestPartition(0, 5, -1, "")]
    topics = [
        committing.OffsetCommitRequestTopic("" if by_id else name, topic_id if by_id else ZERO_UUID, part)
        for name, topic_id in ((n.known, n.known_id), (n.other, n.other_id), (n.absent, NOBODYS))
    ]
    return committing.OffsetCommitRequest(n.group, -1, "", None, -1, topics)


ask("offset_commit", (2, 8), lambda n: _commit(n, False), "READ group", "READ known", "WRITE other")
ask("offset_commit", (10,), lambda n: _commit(n, True), "READ group", "READ known", "DESCRIBE group")


def _fetch_offsets(n: Names, every: bool = False) -> Any:
    named = [n.known, n.other, n.absent]
    topics = [fetching.OffsetFetchRequestTopic(name, [0]) for name in named]
    many = [fetching.OffsetFetchRequestTopics(name, ZERO_UUID, [0]) for name in named]
    groups = [
        fetching.OffsetFetchRequestGroup(group, None, -1, None if every else many)
        for group in (n.group, n.group + "-2")
    ]
    return fetching.OffsetFetchRequest(n.group, None if every else topics, groups)


ask("offset_fetch", (1, 7, 9), _fetch_offsets, "DESCRIBE group", "DESCRIBE known", "READ group")
ask("offset_fetch of all", (7, 9), lambda n: _fetch_offsets(n, True), "DESCRIBE group", "DESCRIBE known")
ask(
    "find_coordinator of a share group",
    (6,),
    lambda n: FindCoordinatorRequest("", 2, ["x:AAAAAAAAAAAAAAAAAAAAAA:0"]),
    *("DESCRIBE group", "READ group"),
)
for _kind, _of in ((0, "group"), (1, "transactional_id"), (2, "cluster")):
    _op = "CLUSTER_ACTION" if _kind == 2 else "DESCRIBE"
    ask(
        f"find_coordinator of kind {_kind}",
        (3, 4),
        lambda n, kind=_kind, of=_of: FindCoordinatorRequest(
            getattr(n, of, "x:AAAAAAAAAAAAAAAAAAAAAA:0"),
            kind,
            [getattr(n, of, "x:AAAAAAAAAAAAAAAAAAAAAA:0"), "another"],
        ),
        f"{_op} {_of}",
        "DESCRIBE cluster",
    )
ask(
    "join_group",
    (4, 9),
    lambda n: JoinGroupRequest(
        n.group, 10_000, 10_000, "stranger", None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    ),
    *("READ group", "DESCRIBE group"),
)
ask("heartbeat", (0, 4), lambda n: HeartbeatRequest(n.group, 1, "m"), "READ group", "DESCRIBE group")
ask(
    "leave_group",
    (0, 5),
    lambda n: LeaveGroupRequest(n.group, "m", [MemberIdentity("m", None)]),
    *("READ group", "DELETE group"),
)
ask(
    "sync_group",
    (0, 5),
    lambda n: SyncGroupRequest(n.group, 1, "m", None, "consumer", "range", []),
    *("READ group", "DESCRIBE group"),
)
ask(
    "describe_groups",
    (0, 6),
    lambda n: DescribeGroupsRequest([n.group, n.group + "-2"], True),
    *("DESCRIBE group", "READ group", "DELETE group"),
)
ask(
    "consumer_group_heartbeat",
    (0, 1),
    lambda n: ConsumerGroupHeartbeatRequest(n.group, "m", 5, None, None, -1, [n.known, n.absent]),
    *("READ group", "DESCRIBE group", "DESCRIBE known", "DESCRIBE absent"),
)
ask(
    "consumer_group_describe",
    (0, 1),
    lambda n: ConsumerGroupDescribeRequest([n.group, n.group + "-2"], True),
    *("DESCRIBE group", "READ group", "DELETE group"),
)
ask("list_groups", (0, 5), lambda n: ListGroupsRequest(), "DESCRIBE group", "DESCRIBE cluster")
ask("api_versions", (3,), lambda n: ApiVersionsRequest("s", "1"), "DESCRIBE cluster")


def _create(n: Names, version_one: bool = False) -> Any:
    topics = [CreatableTopic(name, 1, 1, [], []) for name in (n.absent, n.known, "__cluster_metadata")]
    return CreateTopicsRequest(topics, 10_000, False)


ask(
    "create_topics",
    (4, 7),
    _create,
    *("CREATE absent", "CREATE cluster", "DESCRIBE_CONFIGS absent", "CREATE known"),
    changes=True,
)


def _twice(n: Names) -> Any:
    return CreateTopicsRequest([CreatableTopic(n.absent, 1, 1, [], [])] * 2, 10_000, True)


ask("create_topics names one twice", (7,), _twice, "CREATE absent")
ask(
    "delete_topics",
    (4, 5),
    lambda n: DeleteTopicsRequest([], [n.known, n.absent], 10_000),
    *("DELETE known", "DESCRIBE known", "DESCRIBE absent"),
    changes=True,
)
ask(
    "delete_topics",
    (6,),
    lambda n: DeleteTopicsRequest(
        [DeleteTopicState(n.known, ZERO_UUID), DeleteTopicState(n.absent, ZERO_UUID)], [], 10_000
    ),
    *("DELETE known", "DESCRIBE known", "DELETE absent"),
    changes=True,
)
ask(
    "delete_topics by id",
    (6,),
    lambda n: DeleteTopicsRequest(
        [DeleteTopicState(None, n.known_id), DeleteTopicState(None, NOBODYS)], [], 10_000
    ),
    *("DELETE known", "DESCRIBE known"),
    changes=True,
)
ask(
    "delete_records",
    (0, 2),
    lambda n: DeleteRecordsRequest(
        [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 0)]) for name in (n.known, n.other, n.absent)],
        1_000,
    ),
    *("DELETE known", "WRITE other", "DELETE absent"),
)
ask(
    "init_producer_id",
    (2, 4),
    lambda n: InitProducerIdRequest(None, 10_000),
    *("IDEMPOTENT_WRITE cluster", "WRITE known", "READ known"),
)
ask(
    "init_producer_id of a transaction",
    (2, 5),
    lambda n: InitProducerIdRequest(n.transactional_id, 10_000),
    *("WRITE transactional_id", "DESCRIBE transactional_id", "IDEMPOTENT_WRITE cluster"),
)
ask(
    "offset_for_leader_epoch",
    (2, 4),
    lambda n: epochs.OffsetForLeaderEpochRequest(
        -1,
        [
            epochs.OffsetForLeaderTopic(name, [epochs.OffsetForLeaderPartition(0, -1, 0)])
            for name in (n.known, n.other, n.absent)
        ],
    ),
    *("DESCRIBE known", "CLUSTER_ACTION cluster", "DESCRIBE absent"),
)


def _add(n: Names, named: tuple[str, ...] = ("known", "other")) -> Any:
    topics = [adding.AddPartitionsToTxnTopic(getattr(n, each), [0]) for each in named]
    many = [adding.AddPartitionsToTxnTransaction(n.transactional_id, 1, 0, True, topics)]
    return adding.AddPartitionsToTxnRequest(many, n.transactional_id, 1, 0, topics)


ask("add_partitions_to_txn", (0, 3), _add, "WRITE transactional_id", "WRITE known", "WRITE other")
ask(
    "add_partitions_to_txn with an absent one",
    (3,),
    lambda n: _add(n, ("known", "absent")),
    *("WRITE transactional_id", "WRITE known", "WRITE absent"),
)
ask("add_partitions_to_txn of brokers", (5,), _add, "CLUSTER_ACTION cluster", "WRITE transactional_id")
ask(
    "add_offsets_to_txn",
    (0, 4),
    lambda n: AddOffsetsToTxnRequest(n.transactional_id, 1, 0, n.group),
    *("WRITE transactional_id", "READ group"),
)
ask(
    "end_txn",
    (0, 4),
    lambda n: EndTxnRequest(n.transactional_id, 1, 0, True),
    *("WRITE transactional_id", "DESCRIBE transactional_id"),
)


def _markers(n: Names) -> Any:
    topics = [markers.WritableTxnMarkerTopic(n.absent, [0])]
    return markers.WriteTxnMarkersRequest([markers.WritableTxnMarker(1, 0, True, topics, 0, 0)])


ask("write_txn_markers", (1,), _markers, "CLUSTER_ACTION cluster", "ALTER cluster", "DESCRIBE cluster")


def _txn_commit(n: Names) -> Any:
    part = [txn_committing.TxnOffsetCommitRequestPartition(0, 5, -1, "")]
    topics = [txn_committing.TxnOffsetCommitRequestTopic(name, part) for name in (n.known, n.other, n.absent)]
    return txn_committing.TxnOffsetCommitRequest(n.transactional_id, n.group, 1, 0, -1, "", None, topics)


ask("txn_offset_commit", (0, 3), _txn_commit, "WRITE transactional_id", "READ group", "READ known")
