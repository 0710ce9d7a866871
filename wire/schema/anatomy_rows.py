"""One row per API: where the things of its requests are, and how the answer names and refuses each. PURE.

A *thing* is what gets a result of its own: a topic, a partition, a group, a resource. A row is text, so that importing it
loads no message module. `odradek.wire.schema.anatomy` resolves it against the message classes at first use.

* A path is written from the outermost list in, with `/` between the levels. `topics name / partitions partition_index` is a
  list `topics`, whose structures are named by their field `name`, and have a list `partitions`. A list of plain values has
  `*` for the value itself. `+` joins two lists of one request.
* `results` is the path of the answer. Its names stand in the order of the request's: what is named there by the first
  name is named here by the first name.
* `refused` lists further fields of a refused thing: `base_offset=-1` is a value, a bare name is the field for the text.
* `whole` lists further fields of an answer that refuses all. An answer with a field `error_code` in that version has the
  error there, and its text in `error_message`. Any other answer has it once for each thing.

What the schema tables say stands only there: which fields there are, in which versions, and their defaults. An API without
a row is refused by its `error_code` alone.

Weight, keys of what is judged together, and limits are the controller's. Rights are security's. Some requests do not fit a
row, or only in part (`ODD`): their code says what is special.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs

from odradek.wire.api_keys import ApiKey
from odradek.wire.schema.versions import (
    ADD_PARTITIONS_TO_TXN_BATCHED,
    FETCH_TOPIC_IDS,
    FIND_COORDINATOR_BATCHED,
    JOIN_GROUP_NULL_PROTOCOL,
    OFFSET_COMMIT_TOPIC_IDS,
    OFFSET_FETCH_GROUPS,
    OFFSET_FETCH_TOPIC_IDS,
    PRODUCE_TOPIC_IDS,
)

__all__ = ["ODD", "ROWS", "Place", "Row"]

Place: TypeAlias = Literal["behind", "before", "in place"]


@attrs.frozen
class Row:
    """The anatomy of one API, from the version `since` on."""

    things: str = ""
    results: str = ""
    refused: str = ""
    whole: str = ""
    place: Place = "behind"
    """Where refused things stand: behind the answered ones, before them, or each at its place in the request."""
    ids_since: int | None = None
    """From this version on, things are named by their topic's id, not by its name."""
    once: bool = False
    """True if a thing that is named twice is refused once."""
    each: bool = False
    """True if an answer that refuses all names each thing beside its `error_code`."""
    code: str = "error_code"
    since: int = 0
    within: Row | None = None
    """The anatomy of one thing, where rights or errors differ within it: the topics of one group."""


_TOPIC_PARTITIONS = "topics name / partitions partition_index"
_PARTITIONS_BY_NUMBER = "topics name / partition_indexes *"
_TOPICS = "topics name"
_RESOURCES = "resources resource_type resource_name"
_NO_OFFSET = "committed_offset=-1"

ROWS: Mapping[ApiKey, tuple[Row, ...]] = {
    ApiKey.PRODUCE: (
        Row(
            "topic_data name topic_id / partition_data index",
            "responses name topic_id / partition_responses index",
            "error_message base_offset=-1",
            ids_since=PRODUCE_TOPIC_IDS,
        ),
    ),
    ApiKey.FETCH: (
        Row(
            "topics topic topic_id / partitions partition",
            "responses topic topic_id / partitions partition_index",
            "high_watermark=-1 records=b''",
            ids_since=FETCH_TOPIC_IDS,
        ),
    ),
    ApiKey.LIST_OFFSETS: (Row(_TOPIC_PARTITIONS, _TOPIC_PARTITIONS),),
    ApiKey.OFFSET_COMMIT: (
        Row(
            "topics name topic_id / partitions partition_index",
            "topics name topic_id / partitions partition_index",
            ids_since=OFFSET_COMMIT_TOPIC_IDS,
        ),
    ),
    ApiKey.OFFSET_FETCH: (
        Row(_PARTITIONS_BY_NUMBER, _TOPIC_PARTITIONS, _NO_OFFSET),
        Row(
            "groups group_id",
            "groups group_id",
            since=OFFSET_FETCH_GROUPS,
            within=Row(
                "topics name topic_id / partition_indexes *",
                "topics name topic_id / partitions partition_index",
                _NO_OFFSET,
                ids_since=OFFSET_FETCH_TOPIC_IDS,
            ),
        ),
    ),
    ApiKey.FIND_COORDINATOR: (
        Row(whole="node_id=-1 port=-1"),
        Row(
            "coordinator_keys *",
            "coordinators key",
            "error_message node_id=-1 port=-1",
            since=FIND_COORDINATOR_BATCHED,
        ),
    ),
    ApiKey.JOIN_GROUP: (Row(), Row(whole="protocol_name=None", since=JOIN_GROUP_NULL_PROTOCOL)),
    ApiKey.DESCRIBE_GROUPS: (Row("groups *", "groups group_id", "error_message", place="before"),),
    ApiKey.CREATE_TOPICS: (Row(_TOPICS, _TOPICS, "error_message"),),
    ApiKey.DELETE_TOPICS: (
        Row("topic_names * + topics name topic_id", "responses name topic_id", "error_message"),
    ),
    ApiKey.DELETE_RECORDS: (Row(_TOPIC_PARTITIONS, _TOPIC_PARTITIONS, "low_watermark=-1", once=True),),
    ApiKey.INIT_PRODUCER_ID: (Row(whole="producer_epoch=-1"),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Row("topics topic / partitions partition", "topics topic / partitions partition"),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Row(
            "v3_and_below_topics name / partitions *",
            "results_by_topic_v3_and_below name / results_by_partition partition_index",
            code="partition_error_code",
        ),
        Row(
            "transactions transactional_id / topics name / partitions *",
            "results_by_transaction transactional_id / topic_results name / results_by_partition partition_index",
            code="partition_error_code",
            since=ADD_PARTITIONS_TO_TXN_BATCHED,
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Row(
            "markers producer_id / topics name / partition_indexes *",
            "markers producer_id / topics name / partitions partition_index",
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (Row(_TOPIC_PARTITIONS, _TOPIC_PARTITIONS),),
    ApiKey.CREATE_ACLS: (Row("creations", "results", "error_message"),),
    ApiKey.DELETE_ACLS: (Row("filters", "filter_results", "error_message"),),
    ApiKey.DESCRIBE_CONFIGS: (Row(_RESOURCES, "results resource_type resource_name", "error_message"),),
    ApiKey.ALTER_CONFIGS: (
        Row(_RESOURCES, "responses resource_type resource_name", "error_message", place="in place"),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Row(_RESOURCES, "responses resource_type resource_name", "error_message", place="in place"),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (Row(whole="expiry_timestamp_ms=-1"),),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (Row(whole="expiry_timestamp_ms=-1"),),
    ApiKey.CREATE_PARTITIONS: (Row(_TOPICS, "results name", "error_message", once=True),),
    ApiKey.DELETE_GROUPS: (Row("groups_names *", "results group_id", once=True),),
    ApiKey.ELECT_LEADERS: (
        Row(
            "topic_partitions topic / partitions *",
            "replica_election_results topic / partition_result partition_id",
            "error_message",
            place="in place",
            each=True,
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        Row(
            _TOPIC_PARTITIONS,
            "responses name / partitions partition_index",
            "error_message",
            "allow_replication_factor_change=*",
            place="in place",
            each=True,
        ),
    ),
    ApiKey.OFFSET_DELETE: (Row(_TOPIC_PARTITIONS, _TOPIC_PARTITIONS),),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (Row(whole="error_message=None entries=None"),),
    ApiKey.ALTER_CLIENT_QUOTAS: (Row("entries entity", "entries entity", "error_message"),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        Row("deletions name + upsertions name", "results user", "error_message", once=True),
    ),
    ApiKey.ALTER_PARTITION: (
        Row(
            "topics topic_id / partitions partition_index",
            "topics topic_id / partitions partition_index",
            place="in place",
        ),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (Row(_PARTITIONS_BY_NUMBER, _TOPIC_PARTITIONS, "error_message"),),
    ApiKey.DESCRIBE_TRANSACTIONS: (Row("transactional_ids *", "transaction_states transactional_id"),),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (
        Row(
            "directories id / topics topic_id / partitions partition_index",
            "directories id / topics topic_id / partitions partition_index",
            place="in place",
        ),
    ),
}
"""The rows of each API, the oldest first."""

ODD: Mapping[ApiKey, str] = {
    ApiKey.METADATA: "a refusal hides whether the topic exists, and depends on who would create it",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "an empty list means all topics, and a refusal says whether a topic is internal",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "the answer leaves the outermost level out, and joins what it held by topic",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "a refusal at the door names each partition, with empty lists",
    ApiKey.DESCRIBE_QUORUM: "one refused partition is shared by all with the same number: there may be tens of thousands",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "a refusal has one result for each user, without the user's name",
    ApiKey.CREATE_DELEGATION_TOKEN: "a refusal names the owner and who asked, whom the message alone does not tell",
}
"""APIs whose refusals are code, and why."""
