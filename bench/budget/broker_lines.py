"""Expensive requests that a broker answers by itself: logs, offsets, groups, and descriptions of the cluster."""

from __future__ import annotations

from collections.abc import Callable

from bench.budget.frames import THINGS, Costly, Stage
from bench.budget.values import (
    DEAR_PATTERN,
    HARD_PATTERN,
    TIMEOUT_MS,
    WITH_TIMEOUT,
    any_group,
    distinct,
    group,
    narrow,
    partition,
    wide,
    wide_id,
)
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_header import HEADER, BatchHeader, seal
from odradek.wire.batches.compression import CompressionType, compress
from odradek.wire.codec import encode
from odradek.wire.messages.data_records import ConsumerProtocolSubscription

BOMB_BYTES = 127 << 20
"""The size, in bytes, to which the largest compressed batches inflate. It is just below the limit of a node."""


def batch(codec: int, records: bytes, count: int = 1) -> bytes:
    """Build a valid batch of `count` records. The caller has encoded them as `records`, and compressed them with
    `codec`.
    """
    header = BatchHeader(0, 49 + len(records), -1, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count)
    made = bytearray(HEADER.pack(*header)) + records
    seal(made)
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
    """Encode a consumer's subscription to as many topics as fit into `size` bytes, each with the shortest name."""
    return encode_subscription([""] * max(1, (size - 16) // 2))


def encode_subscription(topics: list[str]) -> bytes:
    return b"\x00\x00" + encode(ConsumerProtocolSubscription(topics, None), 0)


_PRODUCE = {
    "acks": -1,
    "timeout_ms": TIMEOUT_MS,
    "topic_data.name": wide,
    "topic_data.topic_id": wide_id,
}
_FETCH = {
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 1 << 30,
    "session_epoch": 0,
    "replica_id": -1,
    "topics.topic": wide,
    "topics.topic_id": wide_id,
    "topics.partitions.partition": partition,
    "topics.partitions.current_leader_epoch": -1,
    "topics.partitions.partition_max_bytes": 1 << 20,
    "forgotten_topics_data": [],
}
_MEMBER = {
    "group_id": lambda stage, _: stage.groups[0],
    "member_id": lambda stage, _: stage.member_id,
    "generation_id": lambda stage, _: stage.generation_id,
    "protocol_type": "consumer",
    "protocol_name": "range",
}
_NEW_MEMBER = {
    "group_id": "consumers",
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": [],
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": [],
}
"""The fields of a heartbeat that joins a group of the consumer protocol."""
_BEATING_MEMBER = {
    **{name: value for name, value in _NEW_MEMBER.items() if name != "topic_partitions"},
    "member_epoch": 1,
    "subscribed_topic_names": None,
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

BROKER_LINES: dict[ApiKey, tuple[Costly, ...]] = {
    ApiKey.PRODUCE: (
        Costly(
            "Each batch inflates to nearly 128 MiB to be checked, and one partition takes many.",
            THINGS,
            {**_PRODUCE, "topic_data.partition_data.records": _bomb(CompressionType.ZSTD)},
            "zstd",
        ),
        Costly(
            "Each batch inflates to nearly 128 MiB to be checked, at a third of a second of zlib.",
            THINGS,
            {**_PRODUCE, "topic_data.partition_data.records": _bomb(CompressionType.GZIP)},
            "gzip",
        ),
        Costly(
            "Every 80 bytes are a batch that is checked and written by itself.",
            THINGS,
            {
                **_PRODUCE,
                "topic_data.partition_data.index": partition,
                "topic_data.partition_data.records": _SMALLEST,
            },
            "small batches",
        ),
    ),
    ApiKey.FETCH: (
        Costly(
            "Each partition that is named is looked up and read, and named again is asked again.",
            THINGS,
            _FETCH,
        ),
        Costly(
            "Each topic that does not exist is an answer of its own, and a place in the session.",
            ("topics",),
            {**_FETCH, "topics.topic": distinct, "topics.topic_id": lambda _, n: n.to_bytes(16, "big")},
            "unknown topics",
        ),
    ),
    ApiKey.LIST_OFFSETS: (
        Costly(
            "Each look-up by time searches an index and a batch.",
            THINGS,
            {
                "replica_id": -1,
                "topics.name": wide,
                "topics.partitions.partition_index": partition,
                "topics.partitions.current_leader_epoch": -1,
                "topics.partitions.timestamp": 1,
                **WITH_TIMEOUT,
            },
        ),
        Costly(
            "Each topic is looked up by itself, however often it is named.",
            ("topics",),
            {
                "replica_id": -1,
                "topics.name": wide,
                "topics.partitions.partition_index": partition,
                "topics.partitions.timestamp": -2,
                "topics.partitions.current_leader_epoch": -1,
                **WITH_TIMEOUT,
            },
            "repeated topic",
        ),
    ),
    ApiKey.METADATA: (
        Costly("A topic with many partitions is named again and again.", ("topics",), {"topics.name": wide}),
        Costly(
            "Each name that does not exist is an answer, and would be a topic where they are made on demand.",
            ("topics",),
            {"topics.name": distinct},
            "unknown topics",
        ),
    ),
    ApiKey.OFFSET_COMMIT: (
        Costly(
            "Each partition is a record of the coordinator's log.",
            THINGS,
            {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "group_instance_id": None,
                "retention_time_ms": -1,
                "topics.name": wide,
                "topics.topic_id": wide_id,
                "topics.partitions.partition_index": partition,
                "topics.partitions.committed_leader_epoch": -1,
            },
        ),
    ),
    ApiKey.OFFSET_FETCH: (
        Costly(
            "One group is named again and again, each time for all of its offsets.",
            ("groups", "topics.partition_indexes"),
            {
                "group_id": group,
                "groups.group_id": group,
                "groups.member_id": None,
                "groups.member_epoch": -1,
                "groups.topics": None,
                "topics.name": wide,
                "topics.partition_indexes": partition,
            },
        ),
        Costly(
            "A partition of the group is named again and again.",
            ("groups.topics.partition_indexes", "topics"),
            {
                "group_id": group,
                "groups.group_id": group,
                "groups.member_id": None,
                "groups.member_epoch": -1,
                "groups.topics.name": wide,
                "groups.topics.topic_id": wide_id,
                "groups.topics.partition_indexes": partition,
                "topics.name": wide,
                "topics.partition_indexes": partition,
            },
            "repeated partitions",
        ),
    ),
    ApiKey.FIND_COORDINATOR: (
        Costly(
            "Each key is hashed and answered.", ("coordinator_keys", "key"), {"coordinator_keys": distinct}
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
            {**_JOIN, "protocols.name": distinct},
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
                "members.group_instance_id": distinct,
                "members.reason": None,
            },
        ),
    ),
    ApiKey.SYNC_GROUP: (
        Costly(
            "Each assignment is looked up by its member, and kept.",
            ("assignments",),
            {**_MEMBER, "assignments.member_id": distinct},
        ),
    ),
    ApiKey.DESCRIBE_GROUPS: (
        Costly("A group with members is named again and again.", THINGS, {"groups": any_group}),
    ),
    ApiKey.LIST_GROUPS: (
        Costly(
            "Each group is compared with each filter.",
            ("types_filter", "states_filter"),
            {"states_filter": distinct, "types_filter": distinct},
        ),
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        Costly(
            "A new member names topics without end: each is counted for its group.",
            ("subscribed_topic_names",),
            {**_NEW_MEMBER, "subscribed_topic_names": distinct},
        ),
        Costly(
            "Each partition that a member says it has is compared with those that it should have.",
            ("topic_partitions.partitions",),
            {**_BEATING_MEMBER, "topic_partitions.topic_id": lambda stage, _: stage.wide_id},
            "partitions",
        ),
        Costly(
            "Nothing in it grows: RE2 would read the pattern for most of a second.",
            (),
            {**_NEW_MEMBER, "subscribed_topic_regex": HARD_PATTERN},
            "hard pattern",
            since=1,
        ),
        Costly(
            "Nothing in it grows: RE2 reads the pattern, and compares it with each topic.",
            (),
            {**_NEW_MEMBER, "subscribed_topic_regex": DEAR_PATTERN},
            "pattern",
            since=1,
        ),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        Costly("A group with members is named again and again.", THINGS, {"group_ids": any_group}),
    ),
    ApiKey.DELETE_GROUPS: (
        Costly("Each name is a decision of its coordinator.", THINGS, {"groups_names": distinct}),
    ),
    ApiKey.API_VERSIONS: (Costly("A software name as long as can be.", ("client_software_name",)),),
    ApiKey.DELETE_RECORDS: (
        Costly(
            "Each partition is looked up, cut, and waited for.",
            THINGS,
            {**WITH_TIMEOUT, "topics.name": wide, "topics.partitions.partition_index": partition},
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Costly(
            "Each partition that is named gets a marker, which is a batch of its own.",
            THINGS,
            {"markers.topics.name": wide, "markers.topics.partition_indexes": partition},
        ),
    ),
    ApiKey.INIT_PRODUCER_ID: (
        Costly("A transactional id as long as can be.", ("transactional_id",), {"producer_id": -1}),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Costly(
            "Each partition that is named searches its leader epochs.",
            THINGS,
            {
                "replica_id": -2,
                "topics.topic": wide,
                "topics.partitions.partition": partition,
                "topics.partitions.current_leader_epoch": -1,
            },
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        Costly(
            "A broker with hundreds of keys, each with its documentation, is named again and again.",
            THINGS,
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
            THINGS,
            {
                "resources.resource_type": 2,
                "resources.resource_name": narrow,
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
                "resources.resource_name": wide,
                "resources.configuration_keys": "retention.ms",
                "include_synonyms": True,
                "include_documentation": True,
            },
            "keys",
        ),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Costly(
            "Each partition is looked up and answered.",
            ("dirs.topics.partitions",),
            {
                "dirs.path": lambda stage, _: stage.log_dir,
                "dirs.topics.name": wide,
                "dirs.topics.partitions": partition,
            },
        ),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        Costly(
            "A partition is named again and again; each directory tells its size.",
            ("topics.partitions",),
            {"topics.topic": wide, "topics.partitions": partition},
        ),
    ),
    ApiKey.OFFSET_DELETE: (
        Costly(
            "Each partition is looked up, and would be a record of the coordinator's log.",
            THINGS,
            {"group_id": group, "topics.name": wide, "topics.partitions.partition_index": partition},
        ),
    ),
    ApiKey.DESCRIBE_CLUSTER: (
        Costly("Nothing in it grows: every broker is told.", (), {"endpoint_type": 1}),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        Costly(
            "A partition is named again and again, each time with all its producers.",
            THINGS,
            {"topics.name": wide, "topics.partition_indexes": 0},
        ),
    ),
    ApiKey.DESCRIBE_ACLS: (
        Costly(
            "Nothing in it grows: every ACL is compared with one filter.",
            (),
            {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
        ),
    ),
    ApiKey.SASL_HANDSHAKE: (Costly("Nothing in it grows but the mechanism's name.", ("mechanism",), {}),),
    ApiKey.SASL_AUTHENTICATE: (
        Costly("A token is bytes; after a login it is refused.", ("auth_bytes",), {}),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        Costly("Each user is looked up and answered.", ("users",), {"users.name": distinct}),
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        Costly(
            "Renewers would be kept by every node; a plaintext client is refused before.",
            ("renewers",),
            {"renewers.principal_type": "User", "renewers.principal_name": distinct},
        ),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (
        Costly("A secret is looked up; a plaintext client is refused before.", ("hmac",), {}),
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (
        Costly("A secret is looked up; a plaintext client is refused before.", ("hmac",), {}),
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        Costly(
            "Each owner is named; a plaintext client is refused before.",
            ("owners",),
            {"owners.principal_name": distinct},
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        Costly(
            "The filter grows; a type that stands twice is refused at once.",
            ("components",),
            {"components.entity_type": distinct, "components.match_type": 0, "components.match": ""},
        ),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (
        Costly("A type is named again and again.", ("resource_types",), {"resource_types": 2}),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Costly(
            "Each name is sorted and answered, up to the limit of partitions.",
            ("topics",),
            {"topics.name": distinct, "response_partition_limit": 1 << 30, "cursor": None},
        ),
        Costly(
            "A topic with many partitions is named again and again.",
            ("topics",),
            {"topics.name": wide, "response_partition_limit": 1 << 30, "cursor": None},
            "repeated topic",
        ),
    ),
}
"""The expensive requests of each API."""
