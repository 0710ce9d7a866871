"""Expensive requests on a node with much content: thousands of names checked against thousands of rules, and complete
listings.
"""

from __future__ import annotations

import attrs

from bench.budget.broker_lines import BROKER_LINES
from bench.budget.controller_lines import CONTROLLER_LINES
from bench.budget.frames import THINGS, Costly
from bench.budget.transaction_lines import TRANSACTION_LINES
from bench.budget.values import HARD_PATTERN, distinct
from odradek.wire.api_keys import ApiKey
from odradek.wire.schema.versions import OFFSET_FETCH_GROUPS

NAMES = 3_900
"""The number of names in a request. With a few more names, a worker would decode and check the frame."""


def _named(key: ApiKey, number: int, **changes: object) -> Costly:
    """Make a variant of request `number` of this API. It has few enough names that the event loop itself checks
    them.
    """
    lines = (BROKER_LINES | CONTROLLER_LINES | TRANSACTION_LINES)[key]
    line = lines[number]
    values = {**line.values, **changes}
    return attrs.evolve(
        line,
        why=f"Each of {NAMES} names is compared with the rules for all names.",
        name="names",
        count=NAMES,
        values=values,
    )


HELD_LINES: dict[ApiKey, tuple[Costly, ...]] = {
    ApiKey.FETCH: (_named(ApiKey.FETCH, 1),),
    ApiKey.METADATA: (
        _named(ApiKey.METADATA, 1),
        Costly("Nothing in it grows: all topics are told.", (), {"topics": None}, "all", since=1),
    ),
    ApiKey.DESCRIBE_GROUPS: (
        Costly(
            f"Each of {NAMES} names is compared with the rules for all names.",
            THINGS,
            {"groups": distinct},
            "names",
            count=NAMES,
        ),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_named(ApiKey.CONSUMER_GROUP_DESCRIBE, 0),),
    ApiKey.FIND_COORDINATOR: (
        _named(ApiKey.FIND_COORDINATOR, 0),
        _named(ApiKey.FIND_COORDINATOR, 0, key_type=1),
    ),
    ApiKey.DELETE_GROUPS: (_named(ApiKey.DELETE_GROUPS, 0),),
    ApiKey.OFFSET_FETCH: (
        Costly(
            f"Each of {NAMES} names is compared with the rules for all names.",
            ("groups",),
            {
                "groups.group_id": distinct,
                "groups.member_id": None,
                "groups.member_epoch": -1,
                "groups.topics": None,
                "topics": None,
            },
            "names",
            count=NAMES,
            since=OFFSET_FETCH_GROUPS,
        ),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (_named(ApiKey.DESCRIBE_TRANSACTIONS, 0),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_named(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0),),
    ApiKey.DELETE_TOPICS: (_named(ApiKey.DELETE_TOPICS, 0),),
    ApiKey.LIST_GROUPS: (
        Costly(
            "Nothing in it grows: all groups are told.", (), {"states_filter": [], "types_filter": []}, "all"
        ),
    ),
    ApiKey.LIST_TRANSACTIONS: (
        Costly(
            "Nothing in it grows: all transactional ids are told.",
            (),
            {
                "state_filters": [],
                "producer_id_filters": [],
                "duration_filter": -1,
                "transactional_id_pattern": None,
            },
            "all",
        ),
        Costly(
            "A pattern as long as can be is compared with each transactional id.",
            ("transactional_id_pattern",),
            {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
            "pattern",
        ),
        Costly(
            "Nothing in it grows: RE2 would read the pattern for most of a second.",
            (),
            {
                "state_filters": [],
                "producer_id_filters": [],
                "duration_filter": -1,
                "transactional_id_pattern": HARD_PATTERN,
            },
            "hard pattern",
            since=2,
        ),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        Costly("Nothing in it grows: all users are told.", (), {"users": None}, "all"),
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        Costly("Nothing in it grows: all tokens are told.", (), {"owners": None}, "all", needs_login=True),
        Costly(
            "Each token's owner is looked for among those that are named.",
            ("owners",),
            {"owners.principal_type": "User", "owners.principal_name": lambda _, n: f"owner-{n % 100}"},
            "named",
            needs_login=True,
        ),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (
        Costly("A secret is looked for among all tokens.", ("hmac",), {}, "named", needs_login=True),
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (
        Costly("A secret is looked for among all tokens.", ("hmac",), {}, "named", needs_login=True),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        Costly("Nothing in it grows: all quotas are told.", (), {"components": []}, "all"),
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (
        Costly("Nothing in it grows: all clients are listed.", (), {"include_clients": True}, "all"),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (
        Costly("Nothing in it grows: all resources are told.", (), {"resource_types": []}, "all"),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        Costly("Nothing in it grows: all partitions of the node are told.", (), {"topics": None}, "all"),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        Costly("Nothing in it grows: all moves are told.", (), {"topics": None, "timeout_ms": 5000}, "all"),
    ),
    ApiKey.ELECT_LEADERS: (
        Costly(
            "Nothing in it grows: all partitions are looked at.",
            (),
            {"topic_partitions": None, "timeout_ms": 5000},
            "all",
            since=2,
        ),
    ),
    ApiKey.DELETE_ACLS: (
        Costly(
            "A filter without a name means none of the rules, and is compared with all of them.",
            THINGS,
            {
                "filters.resource_type_filter": 1,
                "filters.resource_name_filter": None,
                "filters.pattern_type_filter": 1,
                "filters.principal_filter": distinct,
                "filters.host_filter": None,
                "filters.operation": 1,
                "filters.permission_type": 1,
            },
            "few filters",
            count=3,
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        Costly(
            "Nothing is changed, and each entity that is named has a quota.",
            THINGS,
            {
                "entries.entity.entity_type": "user",
                "entries.entity.entity_name": lambda _, n: f"user-{n}",
                "entries.ops.key": "producer_byte_rate",
                "entries.ops.value": 1e9,
                "entries.ops.remove": False,
                "validate_only": True,
            },
            "held",
        ),
    ),
}
"""The expensive requests of each API, in addition to those of the other modules."""
