"""Which work makes a request of each API expensive: one line or several for every API that a node serves.

A new API needs its line here (a test asks a node what it serves). Think of what a handler does for each element of a
request, of things that exist and are named again and again, and of bytes that mean more bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from crc32c import crc32c

from bench.budget.frames import Costly, Stage, costly_request, framed
from wire.api_keys import ApiKey
from wire.batch_header import CRC_START, HEADER
from wire.codec import encode
from wire.compression import CompressionType, compress
from wire.messages.data_records import ConsumerProtocolSubscription
from wire.principal import encode_principal

BOMB_BYTES = 127 << 20
"""As many as one batch may inflate to, nearly."""
TIMEOUT_MS = 5000


def _wide(stage: Stage, number: int) -> str:
    return stage.wide


def _wide_id(stage: Stage, number: int) -> bytes:
    return stage.wide_id


def _partition(stage: Stage, number: int) -> int:
    return number % stage.wide_partitions


def _narrow(stage: Stage, number: int) -> str:
    return stage.narrow[number % len(stage.narrow)]


def _distinct(stage: Stage, number: int) -> str:
    return f"n{number}"


def _group(stage: Stage, number: int) -> str:
    return stage.group


def _any_group(stage: Stage, number: int) -> str:
    return stage.groups[number % len(stage.groups)]


def _cluster(stage: Stage, number: int) -> str:
    return stage.cluster_id


def _epoch(stage: Stage, number: int) -> int:
    return stage.second_broker_epoch


def batch(codec: int, records: bytes, count: int = 1) -> bytes:
    """A sound batch of `count` records around `records`, which are compressed already."""
    fields = [0, 49 + len(records), -1, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count]
    made = bytearray(HEADER.pack(*fields)) + records
    fields[4] = crc32c(memoryview(made)[CRC_START:])
    HEADER.pack_into(made, 0, *fields)
    return bytes(made)


_SMALLEST = batch(0, b"\x0c\x00\x00\x00\x01\x00\x00")
_bombs: dict[int, bytes] = {}


def _bomb(codec: int) -> Callable[[Stage, int], bytes]:
    def made(stage: Stage, number: int) -> bytes:
        if codec not in _bombs:
            _bombs[codec] = batch(codec, compress(CompressionType(codec), bytes(BOMB_BYTES), None))
        return _bombs[codec]

    return made


def _subscription(stage: Stage, size: int) -> bytes:
    """A consumer's subscription to as many topics as find room, each with the shortest name."""
    return encode_subscription([""] * max(1, (size - 16) // 2))


def encode_subscription(topics: list[str]) -> bytes:
    return b"\x00\x00" + encode(ConsumerProtocolSubscription(topics, None), 0)


def _envelope_body(stage: Stage, size: int) -> bytes:
    line = LINES[ApiKey.INCREMENTAL_ALTER_CONFIGS][0]
    request = costly_request(line, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, size, stage)
    return framed(request, 1)[4:]


_PRODUCE = {
    "acks": -1,
    "timeout_ms": TIMEOUT_MS,
    "topic_data.name": _wide,
    "topic_data.topic_id": _wide_id,
}
_FETCH = {
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 1 << 30,
    "session_epoch": 0,
    "replica_id": -1,
    "topics.topic": _wide,
    "topics.topic_id": _wide_id,
    "topics.partitions.partition": _partition,
    "topics.partitions.current_leader_epoch": -1,
    "topics.partitions.partition_max_bytes": 1 << 20,
    "forgotten_topics_data": [],
}
_TOPIC = {"timeout_ms": TIMEOUT_MS}
_DEFAULTED = {"topics.num_partitions": 1, "topics.replication_factor": 1, "topics.assignments": []}
_MEMBER = {
    "group_id": lambda stage, _: stage.groups[0],
    "member_id": lambda stage, _: stage.member_id,
    "generation_id": lambda stage, _: stage.generation_id,
    "protocol_type": "consumer",
    "protocol_name": "range",
}
_JOIN = {
    **_MEMBER,
    "group_id": "joined",
    "member_id": "",
    "session_timeout_ms": 6000,
    "rebalance_timeout_ms": 10,
    "group_instance_id": None,
    "reason": None,
}
_VOTER = {
    "cluster_id": _cluster,
    "topics.topic_name": "__cluster_metadata",
    "topics.name": "__cluster_metadata",
}
_BROKER = {"broker_id": 2, "broker_epoch": _epoch, "cluster_id": _cluster}

_JUDGED_TOPICS = Costly(
    "Each topic is judged with its whole configuration.",
    ("resources",),
    {
        "resources.resource_type": 2,
        "resources.resource_name": _distinct,
        "resources.configs.name": "retention.ms",
        "resources.configs.value": "1",
        "validate_only": True,
    },
    "topics",
)

LINES: dict[ApiKey, tuple[Costly, ...]] = {
    ApiKey.PRODUCE: (
        Costly(
            "Each batch inflates to nearly 128 MiB to be checked, and one partition takes many.",
            ("topic_data.partition_data",),
            {**_PRODUCE, "topic_data.partition_data.records": _bomb(CompressionType.ZSTD)},
            "zstd",
        ),
        Costly(
            "Each batch inflates to nearly 128 MiB to be checked, at a third of a second of zlib.",
            ("topic_data.partition_data",),
            {**_PRODUCE, "topic_data.partition_data.records": _bomb(CompressionType.GZIP)},
            "gzip",
        ),
        Costly(
            "Every 80 bytes are a batch that is checked and written by itself.",
            ("topic_data.partition_data",),
            {
                **_PRODUCE,
                "topic_data.partition_data.index": _partition,
                "topic_data.partition_data.records": _SMALLEST,
            },
            "small batches",
        ),
    ),
    ApiKey.FETCH: (
        Costly(
            "Each partition that is named is looked up and read, and named again is asked again.",
            ("topics.partitions",),
            _FETCH,
        ),
        Costly(
            "Each topic that does not exist is an answer of its own, and a place in the session.",
            ("topics",),
            {**_FETCH, "topics.topic": _distinct, "topics.topic_id": lambda _, n: n.to_bytes(16, "big")},
            "unknown topics",
        ),
    ),
    ApiKey.LIST_OFFSETS: (
        Costly(
            "Each look-up by time searches an index and a batch.",
            ("topics.partitions",),
            {
                "replica_id": -1,
                "topics.name": _wide,
                "topics.partitions.partition_index": _partition,
                "topics.partitions.current_leader_epoch": -1,
                "topics.partitions.timestamp": 1,
                **_TOPIC,
            },
        ),
        Costly(
            "Each topic is looked up by itself, however often it is named.",
            ("topics",),
            {
                "replica_id": -1,
                "topics.name": _wide,
                "topics.partitions.partition_index": _partition,
                "topics.partitions.timestamp": -2,
                "topics.partitions.current_leader_epoch": -1,
                **_TOPIC,
            },
            "repeated topic",
        ),
    ),
    ApiKey.METADATA: (
        Costly("A topic with many partitions is named again and again.", ("topics",), {"topics.name": _wide}),
        Costly(
            "Each name that does not exist is an answer, and would be a topic where they are made on demand.",
            ("topics",),
            {"topics.name": _distinct},
            "unknown topics",
        ),
    ),
    ApiKey.OFFSET_COMMIT: (
        Costly(
            "Each partition is a record of the coordinator's log.",
            ("topics.partitions",),
            {
                "group_id": _group,
                "generation_id_or_member_epoch": -1,
                "group_instance_id": None,
                "retention_time_ms": -1,
                "topics.name": _wide,
                "topics.topic_id": _wide_id,
                "topics.partitions.partition_index": _partition,
                "topics.partitions.committed_leader_epoch": -1,
            },
        ),
    ),
    ApiKey.OFFSET_FETCH: (
        Costly(
            "One group is named again and again, each time for all of its offsets.",
            ("groups", "topics.partition_indexes"),
            {
                "group_id": _group,
                "groups.group_id": _group,
                "groups.member_id": None,
                "groups.member_epoch": -1,
                "groups.topics": None,
                "topics.name": _wide,
                "topics.partition_indexes": _partition,
            },
        ),
        Costly(
            "A partition of the group is named again and again.",
            ("groups.topics.partition_indexes", "topics"),
            {
                "group_id": _group,
                "groups.group_id": _group,
                "groups.member_id": None,
                "groups.member_epoch": -1,
                "groups.topics.name": _wide,
                "groups.topics.topic_id": _wide_id,
                "groups.topics.partition_indexes": _partition,
                "topics.name": _wide,
                "topics.partition_indexes": _partition,
            },
            "repeated partitions",
        ),
    ),
    ApiKey.FIND_COORDINATOR: (
        Costly(
            "Each key is hashed and answered.", ("coordinator_keys", "key"), {"coordinator_keys": _distinct}
        ),
    ),
    ApiKey.JOIN_GROUP: (
        Costly(
            "The subscription is bytes that hold as many topic names as find room.",
            ("protocols.metadata",),
            {**_JOIN, "protocols.name": "range"},
            "metadata",
            _subscription,
        ),
        Costly(
            "Each protocol is compared with the other members'.",
            ("protocols",),
            {**_JOIN, "protocols.name": _distinct},
            "protocols",
        ),
    ),
    ApiKey.HEARTBEAT: (Costly("A member id that nobody has, as long as can be.", ("member_id",), _MEMBER),),
    ApiKey.LEAVE_GROUP: (
        Costly(
            "Each member that leaves is looked for, by member id and by instance.",
            ("members", "member_id"),
            {
                **_MEMBER,
                "members.member_id": "",
                "members.group_instance_id": _distinct,
                "members.reason": None,
            },
        ),
    ),
    ApiKey.SYNC_GROUP: (
        Costly(
            "Each assignment is looked up by its member, and kept.",
            ("assignments",),
            {**_MEMBER, "assignments.member_id": _distinct},
        ),
    ),
    ApiKey.DESCRIBE_GROUPS: (
        Costly("A group with members is named again and again.", ("groups",), {"groups": _any_group}),
    ),
    ApiKey.LIST_GROUPS: (
        Costly(
            "Each group is compared with each filter.",
            ("types_filter", "states_filter"),
            {"states_filter": _distinct, "types_filter": _distinct},
        ),
    ),
    ApiKey.DELETE_GROUPS: (
        Costly("Each name is a decision of its coordinator.", ("groups_names",), {"groups_names": _distinct}),
    ),
    ApiKey.API_VERSIONS: (Costly("A software name as long as can be.", ("client_software_name",)),),
    ApiKey.CREATE_TOPICS: (
        Costly(
            "Each topic is judged and placed; they are not made, since what is made stays.",
            ("topics",),
            {**_TOPIC, "topics.name": _distinct, **_DEFAULTED, "topics.configs": [], "validate_only": True},
            "topics",
        ),
        Costly(
            "Each key of a topic's configuration is judged.",
            ("topics.configs",),
            {
                **_TOPIC,
                "topics.name": "made",
                **_DEFAULTED,
                "topics.configs.name": "retention.ms",
                "topics.configs.value": "1",
                "validate_only": True,
            },
            "configs",
        ),
        Costly(
            "One number of partitions stands for as many records and replicas.",
            ("topics",),
            {
                **_TOPIC,
                "topics.name": _distinct,
                "topics.num_partitions": 10_000,
                "topics.replication_factor": 1,
                "topics.assignments": [],
                "topics.configs": [],
                "validate_only": True,
            },
            "partitions",
        ),
        Costly(
            "Each partition's replicas are told, and judged.",
            ("topics.assignments",),
            {
                **_TOPIC,
                "topics.name": "made",
                "topics.num_partitions": -1,
                "topics.replication_factor": -1,
                "topics.assignments.partition_index": lambda _, n: n,
                "topics.assignments.broker_ids": 1,
                "topics.configs": [],
                "validate_only": True,
            },
            "assignments",
        ),
    ),
    ApiKey.DELETE_TOPICS: (
        Costly(
            "Each name is looked up and answered, repeated ones too.",
            ("topics", "topic_names"),
            {**_TOPIC, "topics.name": _distinct, "topic_names": _distinct},
        ),
    ),
    ApiKey.DELETE_RECORDS: (
        Costly(
            "Each partition is looked up, cut, and waited for.",
            ("topics.partitions",),
            {**_TOPIC, "topics.name": _wide, "topics.partitions.partition_index": _partition},
        ),
    ),
    ApiKey.INIT_PRODUCER_ID: (
        Costly("A transactional id as long as can be.", ("transactional_id",), {"producer_id": -1}),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Costly(
            "Each partition that is named searches its leader epochs.",
            ("topics.partitions",),
            {
                "replica_id": -2,
                "topics.topic": _wide,
                "topics.partitions.partition": _partition,
                "topics.partitions.current_leader_epoch": -1,
            },
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        Costly(
            "A broker with hundreds of keys, each with its documentation, is named again and again.",
            ("resources",),
            {
                "resources.resource_type": 4,
                "resources.resource_name": "1",
                "resources.configuration_keys": None,
                "include_synonyms": True,
                "include_documentation": True,
            },
            "broker",
        ),
        Costly(
            "Each topic has dozens of keys.",
            ("resources",),
            {
                "resources.resource_type": 2,
                "resources.resource_name": _narrow,
                "resources.configuration_keys": None,
                "include_synonyms": True,
                "include_documentation": True,
            },
            "topics",
        ),
        Costly(
            "A key is asked for again and again.",
            ("resources.configuration_keys",),
            {
                "resources.resource_type": 2,
                "resources.resource_name": _wide,
                "resources.configuration_keys": "retention.ms",
                "include_synonyms": True,
                "include_documentation": True,
            },
            "keys",
        ),
    ),
    ApiKey.ALTER_CONFIGS: (
        Costly(
            "Each key is judged.",
            ("resources.configs",),
            {
                "resources.resource_type": 2,
                "resources.resource_name": _wide,
                "resources.configs.name": _distinct,
                "resources.configs.value": "1",
                "validate_only": True,
            },
            "keys",
        ),
        _JUDGED_TOPICS,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Costly(
            "Each change is judged, and appends to a list that gets longer.",
            ("resources.configs",),
            {
                "resources.resource_type": 2,
                "resources.resource_name": _wide,
                "resources.configs.name": _distinct,
                "resources.configs.config_operation": 2,
                "resources.configs.value": "1",
                "validate_only": True,
            },
            "keys",
        ),
        _JUDGED_TOPICS,
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Costly(
            "Each partition is looked up and answered.",
            ("dirs.topics.partitions",),
            {
                "dirs.path": lambda stage, _: stage.log_dir,
                "dirs.topics.name": _wide,
                "dirs.topics.partitions": _partition,
            },
        ),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        Costly(
            "A partition is named again and again; each directory tells its size.",
            ("topics.partitions",),
            {"topics.topic": _wide, "topics.partitions": _partition},
        ),
    ),
    ApiKey.CREATE_PARTITIONS: (
        Costly(
            "Each topic is judged, and its new partitions are placed.",
            ("topics",),
            {
                **_TOPIC,
                "topics.name": _narrow,
                "topics.count": 10_000,
                "topics.assignments": None,
                "validate_only": True,
            },
            "topics",
        ),
        Costly(
            "Each new partition's replicas are told, and judged.",
            ("topics.assignments",),
            {
                **_TOPIC,
                "topics.name": _narrow,
                "topics.count": 10_001,
                "topics.assignments.broker_ids": 1,
                "validate_only": True,
            },
            "assignments",
        ),
    ),
    ApiKey.ELECT_LEADERS: (
        Costly(
            "Each partition is looked up, and answered.",
            ("topic_partitions.partitions",),
            {**_TOPIC, "topic_partitions.topic": _wide, "topic_partitions.partitions": _partition},
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        Costly(
            "Each partition's replicas are told, judged, and would be recorded.",
            ("topics.partitions",),
            {
                **_TOPIC,
                "topics.name": _wide,
                "topics.partitions.partition_index": lambda _, n: n,
                "topics.partitions.replicas": [9, 8],
            },
        ),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        Costly(
            "Each partition is looked up.",
            ("topics.partition_indexes",),
            {**_TOPIC, "topics.name": _wide, "topics.partition_indexes": _partition},
        ),
    ),
    ApiKey.OFFSET_DELETE: (
        Costly(
            "Each partition is looked up, and would be a record of the coordinator's log.",
            ("topics.partitions",),
            {"group_id": _group, "topics.name": _wide, "topics.partitions.partition_index": _partition},
        ),
    ),
    ApiKey.VOTE: (
        Costly(
            "Each partition is a vote; a quorum has one.", ("topics.partitions",), {**_VOTER, "voter_id": 1}
        ),
    ),
    ApiKey.BEGIN_QUORUM_EPOCH: (
        Costly(
            "Each endpoint is kept; a quorum has one partition.",
            ("leader_endpoints", "topics.partitions"),
            _VOTER,
        ),
    ),
    ApiKey.END_QUORUM_EPOCH: (
        Costly(
            "Each successor is looked for; a quorum has one partition.",
            ("topics.partitions.preferred_candidates", "topics.partitions.preferred_successors"),
            _VOTER,
        ),
    ),
    ApiKey.DESCRIBE_QUORUM: (
        Costly("Each partition would be described; a quorum has one.", ("topics.partitions",), _VOTER),
    ),
    ApiKey.ALTER_PARTITION: (
        Costly(
            "Each partition is judged against the image.",
            ("topics.partitions",),
            {
                **_BROKER,
                "topics.topic_id": _wide_id,
                "topics.partitions.partition_index": _partition,
                "topics.partitions.new_isr": 2,
                "topics.partitions.new_isr_with_epochs.broker_id": 2,
                "topics.partitions.new_isr_with_epochs.broker_epoch": -1,
            },
        ),
    ),
    ApiKey.UPDATE_FEATURES: (
        Costly(
            "Each feature is looked up and refused.",
            ("feature_updates",),
            {**_TOPIC, "feature_updates.feature": _distinct, "validate_only": True},
        ),
    ),
    ApiKey.ENVELOPE: (
        Costly(
            "The bytes inside are a request of their own, decoded and decided.",
            ("request_data",),
            {
                "request_principal": encode_principal("User:ANONYMOUS"),
                "client_host_address": b"\x7f\x00\x00\x01",
            },
            "",
            _envelope_body,
        ),
    ),
    ApiKey.FETCH_SNAPSHOT: (
        Costly(
            "Each partition would be read; a quorum has one.",
            ("topics.partitions",),
            {**_VOTER, "replica_id": 2},
        ),
    ),
    ApiKey.DESCRIBE_CLUSTER: (
        Costly("Nothing in it grows: every broker is told.", (), {"endpoint_type": 1}),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        Costly(
            "A partition is named again and again, each time with all its producers.",
            ("topics.partition_indexes",),
            {"topics.name": _wide, "topics.partition_indexes": 0},
        ),
    ),
    ApiKey.BROKER_REGISTRATION: (
        Costly(
            "Each listener, feature and directory is judged, and would be recorded.",
            ("listeners",),
            {**_BROKER, "broker_id": 3, "listeners.name": _distinct, "listeners.host": "h", "features": []},
        ),
    ),
    ApiKey.BROKER_HEARTBEAT: (
        Costly(
            "Each directory that is offline is compared with all replicas of the broker.",
            ("offline_log_dirs",),
            {
                **_BROKER,
                "offline_log_dirs": lambda _, n: (n + (1 << 64)).to_bytes(16, "big"),
                "want_fence": True,
            },
        ),
    ),
    ApiKey.UNREGISTER_BROKER: (Costly("Nothing in it grows.", (), {"broker_id": 99}),),
    ApiKey.ALLOCATE_PRODUCER_IDS: (Costly("Nothing in it grows.", (), _BROKER),),
    ApiKey.CONTROLLER_REGISTRATION: (
        Costly(
            "Each listener and feature is judged, and would be recorded.",
            ("listeners",),
            {"controller_id": 9, "listeners.name": _distinct, "listeners.host": "h", "features": []},
        ),
    ),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (
        Costly(
            "Each replica is looked up, and would be recorded.",
            ("directories.topics.partitions",),
            {
                **_BROKER,
                "directories.id": bytes(15) + b"\x09",
                "directories.topics.topic_id": _wide_id,
                "directories.topics.partitions.partition_index": _partition,
            },
        ),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (
        Costly("A type is named again and again.", ("resource_types",), {"resource_types": 2}),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Costly(
            "Each name is sorted and answered, up to the limit of partitions.",
            ("topics",),
            {"topics.name": _distinct, "response_partition_limit": 1 << 30, "cursor": None},
        ),
        Costly(
            "A topic with many partitions is named again and again.",
            ("topics",),
            {"topics.name": _wide, "response_partition_limit": 1 << 30, "cursor": None},
            "repeated topic",
        ),
    ),
    ApiKey.ADD_RAFT_VOTER: (
        Costly(
            "Each listener is judged, and would be recorded.",
            ("listeners",),
            {
                **_TOPIC,
                "cluster_id": _cluster,
                "voter_id": 1,
                "listeners.name": _distinct,
                "listeners.host": "h",
            },
        ),
    ),
    ApiKey.REMOVE_RAFT_VOTER: (
        Costly("Nothing in it grows but the cluster's name.", ("cluster_id",), {"voter_id": 9}),
    ),
    ApiKey.UPDATE_RAFT_VOTER: (
        Costly(
            "Each listener is judged, and would be recorded.",
            ("listeners",),
            {"cluster_id": _cluster, "voter_id": 9, "listeners.name": _distinct, "listeners.host": "h"},
        ),
    ),
}
"""By API."""
