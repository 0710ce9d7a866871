"""Lists a row for each API: where the things of its requests are, and how the answer names and refuses each
thing. PURE.

A *thing* is an item that gets its own result: a topic, a partition, a group, a resource. A row is text, so an
import of this module does not load the modules of messages. At the first use of a row,
`odradek.wire.schema.anatomy` looks up its fields in the message classes.

* A path goes from the outermost list to the innermost, with `/` between the levels. For example, in `topics
  name / partitions partition_index` the outer list is `topics`; the field `name` names its elements. Each
  topic has a list `partitions`, whose elements are named by `partition_index`. If the elements are plain
  values, `*` stands for the value itself. `+` joins two lists of one request.
* `results` is the path in the answer. Its names have the same order as the names in the request's path. So
  the first name in the answer corresponds to the first name in the request.
* `refused` lists further fields in the result of a refused thing. `base_offset=-1` sets a value. A name
  without a value is the field for the error text.
* `whole` lists further fields of an answer that refuses the whole request. If the answer has a field
  `error_code` in that version, this field gets the error, and `error_message` its text. If the answer has no
  such field, it repeats the error for each thing.

The types, versions and defaults of the fields are in the schema tables, not here. If an API has no row, its
answers can refuse only the whole request, by the field `error_code`.

The controller defines weights, limits, and which things are decided together. `odradek.security` defines
access rights. Some requests fit a row only in part, or not at all. `ODD` lists them with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs

from odradek.wire.api_keys import ApiKey
from odradek.wire.schema import versions

__all__ = ["ODD", "ROWS", "Place", "Row"]

Place: TypeAlias = Literal["behind", "before", "in place"]


@attrs.frozen
class Row:
    """The description of one API's requests and answers, valid from version `since` on. The module's
    docstring explains the notation.
    """

    things: str = ""
    results: str = ""
    refused: str = ""
    whole: str = ""
    place: Place = "behind"
    """The position of refused things in the answer: behind all other things, or before them. With "in place", they are
    at the same position as in the request.
    """
    ids_since: int | None = None
    """The first version in which topics are named by their ids; None if no version has topic ids."""
    once: bool = False
    """True if a thing that occurs twice in a request gets only one refusal."""
    each: bool = False
    """True if a refusal of the whole request has not only an `error_code`, but also a result for each thing.
    """
    code: str = "error_code"
    since: int = 0
    within: Row | None = None
    """A row for one outermost element, such as one group with its topics. It is needed if the things inside
    the element have access rights or errors of their own.
    """


_TABLE = r"""
# API | things | results (`=`: the same path) | refused | further values of `Row`
PRODUCE | topic_data name topic_id / partition_data index | responses name topic_id / partition_responses index | error_message base_offset=-1 | ids since PRODUCE_TOPIC_IDS
FETCH | topics topic topic_id / partitions partition | responses topic topic_id / partitions partition_index | high_watermark=-1 records=b'' | ids since FETCH_TOPIC_IDS
LIST_OFFSETS | topics name / partitions partition_index | =
OFFSET_COMMIT | topics name topic_id / partitions partition_index | = |  | ids since OFFSET_COMMIT_TOPIC_IDS
OFFSET_FETCH | topics name / partition_indexes * | topics name / partitions partition_index | committed_offset=-1
OFFSET_FETCH | groups group_id | = |  | since OFFSET_FETCH_GROUPS
within | topics name topic_id / partition_indexes * | topics name topic_id / partitions partition_index | committed_offset=-1 | ids since OFFSET_FETCH_TOPIC_IDS
FIND_COORDINATOR |  |  |  | whole node_id=-1 port=-1
FIND_COORDINATOR | coordinator_keys * | coordinators key | error_message node_id=-1 port=-1 | since FIND_COORDINATOR_BATCHED
JOIN_GROUP
JOIN_GROUP |  |  |  | whole protocol_name=None; since JOIN_GROUP_NULL_PROTOCOL
DESCRIBE_GROUPS | groups * | groups group_id | error_message | before
CONSUMER_GROUP_DESCRIBE | group_ids * | groups group_id | error_message | before
CREATE_TOPICS | topics name | = | error_message
DELETE_TOPICS | topic_names * + topics name topic_id | responses name topic_id | error_message
DELETE_RECORDS | topics name / partitions partition_index | = | low_watermark=-1 | once
INIT_PRODUCER_ID |  |  |  | whole producer_epoch=-1
OFFSET_FOR_LEADER_EPOCH | topics topic / partitions partition | =
ADD_PARTITIONS_TO_TXN | v3_and_below_topics name / partitions * | results_by_topic_v3_and_below name / results_by_partition partition_index |  | code partition_error_code
ADD_PARTITIONS_TO_TXN | transactions transactional_id / topics name / partitions * | results_by_transaction transactional_id / topic_results name / results_by_partition partition_index |  | code partition_error_code; since ADD_PARTITIONS_TO_TXN_BATCHED
WRITE_TXN_MARKERS | markers producer_id / topics name / partition_indexes * | markers producer_id / topics name / partitions partition_index
TXN_OFFSET_COMMIT | topics name / partitions partition_index | =
CREATE_ACLS | creations | results | error_message
DELETE_ACLS | filters | filter_results | error_message
DESCRIBE_CONFIGS | resources resource_type resource_name | results resource_type resource_name | error_message
ALTER_CONFIGS | resources resource_type resource_name | responses resource_type resource_name | error_message | in place
INCREMENTAL_ALTER_CONFIGS | resources resource_type resource_name | responses resource_type resource_name | error_message | in place
RENEW_DELEGATION_TOKEN |  |  |  | whole expiry_timestamp_ms=-1
EXPIRE_DELEGATION_TOKEN |  |  |  | whole expiry_timestamp_ms=-1
CREATE_PARTITIONS | topics name | results name | error_message | once
DELETE_GROUPS | groups_names * | results group_id |  | once
ELECT_LEADERS | topic_partitions topic / partitions * | replica_election_results topic / partition_result partition_id | error_message | in place; each
ALTER_PARTITION_REASSIGNMENTS | topics name / partitions partition_index | responses name / partitions partition_index | error_message | whole allow_replication_factor_change=*; in place; each
OFFSET_DELETE | topics name / partitions partition_index | =
DESCRIBE_CLIENT_QUOTAS |  |  |  | whole error_message=None entries=None
ALTER_CLIENT_QUOTAS | entries entity | = | error_message
ALTER_USER_SCRAM_CREDENTIALS | deletions name + upsertions name | results user | error_message | once
ALTER_PARTITION | topics topic_id / partitions partition_index | = |  | in place
DESCRIBE_PRODUCERS | topics name / partition_indexes * | topics name / partitions partition_index | error_message
DESCRIBE_TRANSACTIONS | transactional_ids * | transaction_states transactional_id
ASSIGN_REPLICAS_TO_DIRS | directories id / topics topic_id / partitions partition_index | = |  | in place
"""
"""The text of all rows. An API has a line for each form of its messages; the oldest form comes first. A line
`within` describes the inside of one outermost element of the preceding line.
"""


def _rows(table: str) -> Mapping[ApiKey, tuple[Row, ...]]:
    """Parse the table. A version in the table is the name of a constant in `odradek.wire.schema.versions`."""
    found: dict[ApiKey, tuple[Row, ...]] = {}
    last = ApiKey.PRODUCE
    for line in table.strip().splitlines()[1:]:
        api, things, results, refused, special = (part.strip() for part in f"{line}||||".split("|")[:5])
        row = Row(things, things if results == "=" else results, refused)
        for part in filter(None, special.split("; ")):
            row = _with(row, part)
        if api == "within":
            *others, around = found[last]
            found[last] = (*others, attrs.evolve(around, within=row))
        else:
            last = ApiKey[api]
            found[last] = (*found.get(last, ()), row)
    return found


def _with(row: Row, special: str) -> Row:
    """Return a copy of the row with the change that the text `special` describes, such as `ids since
    PRODUCE_TOPIC_IDS`.
    """
    match special.split():
        case ["whole", *fields]:
            return attrs.evolve(row, whole=" ".join(fields))
        case ["ids", "since", version]:
            return attrs.evolve(row, ids_since=getattr(versions, version))
        case ["since", version]:
            return attrs.evolve(row, since=getattr(versions, version))
        case ["code", field]:
            return attrs.evolve(row, code=field)
        case ["once"]:
            return attrs.evolve(row, once=True)
        case ["each"]:
            return attrs.evolve(row, each=True)
        case ["before"]:
            return attrs.evolve(row, place="before")
        case ["in", "place"]:
            return attrs.evolve(row, place="in place")
    raise AssertionError(f"a row of the table has the unknown special word {special!r}")


ROWS = _rows(_TABLE)
"""The rows of each API; the row of the oldest version comes first."""

ODD: Mapping[ApiKey, str] = {
    ApiKey.METADATA: "a refusal hides whether the topic exists, and depends on who would create it",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "an empty list means all topics, and a refusal says whether a topic is internal",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "the answer leaves the outermost level out, and joins what it held by topic",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "a refusal at the door names each partition, with empty lists",
    ApiKey.DESCRIBE_QUORUM: "one refused partition is shared by all with the same number: there may be tens of thousands",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "a refusal has one result for each user, without the user's name",
    ApiKey.CREATE_DELEGATION_TOKEN: "a refusal names the owner and who asked, which the message alone does not show",
}
"""The APIs whose refusals do not fit a row. Their handlers make these refusals by their own code. The value
is the reason.
"""
