"""Answers of the console's API for tests of its pages: a small cluster, an empty one, and a very large one.

The shapes are those of `/api/openapi.json`; `test_recorded_answers.py` holds them to it. A world is a mapping from an
address without its query to an answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = [
    "Answer",
    "World",
    "decoded",
    "empty_world",
    "large_world",
    "record",
    "session",
    "small_world",
    "topic",
]

Answer: TypeAlias = "Mapping[str, Answer] | Sequence[Answer] | str | int | float | bool | None"
Shape = dict[str, Answer]
World = dict[str, Answer]
NOW_MS = int(time.time() * 1000)
GIB = 1 << 30
PARTITIONS_PER_PAGE = 200


def small_world() -> World:
    """Make the answers of a cluster of three brokers: one is down, one disk is slow, a transaction hangs."""
    return {
        "/api/session": session(),
        "/api/overview": overview(),
        "/api/brokers": [broker(1), broker(2, slow=True), broker(3, state="down")],
        "/api/quorum": quorum((1, 2, 3)),
        "/api/topics": listed(topics()),
        "/api/topics/payments": topic("payments", 12),
        "/api/topics/payments/configs": configs(),
        "/api/topics/payments/groups": [
            {
                "id": "billing",
                "type": "consumer",
                "state": "Stable",
                "partitions": 12,
                "lag": 4213,
                "unknown_partitions": 0,
                "behind_ms": 9300,
            }
        ],
        "/api/groups": listed([group_row("audit", 0), group_row("billing", 4213), group_row("slow", 91_234)]),
        "/api/groups/billing": group("billing"),
        "/api/message": record(0, 41),
        "/api/moves": moves(),
        "/api/transactions": listed(transactions()) | {"ids": 14, "errors": []},
        "/api/clients": listed([client(number) for number in range(3)]) | {"errors": []},
        "/api/access": access(),
        "/api/access/check": {
            "allowed": True,
            "why": "the rule for topics that begin with pay allows it",
            "rule": rule("User:alice", "allow", "write", "pay", "prefixed"),
            "is_certain": True,
        },
        "/api/history": listed(history())
        | {
            "begins_at": 0,
            "kinds": ["config", "isr", "topic"],
            "who_unknown": ["it is not known who has asked for 1 event in epoch 3"],
        },
    }


def empty_world() -> World:
    """Make the answers of a cluster of one broker that holds nothing."""
    one: Shape = {
        "judgement": "ok", "troubles": [], "brokers": 1, "brokers_alive": 1, "controllers": 1, "active_controller": 1,
        "topics": 0, "partitions": 0, "under_replicated": 0, "moving": 0, "records_per_second": None,
        "bytes_per_second": None, "events": [],
    }  # fmt: skip
    return {
        "/api/session": session(),
        "/api/overview": overview() | one,
        "/api/brokers": [broker(1)],
        "/api/quorum": quorum((1,)),
        "/api/topics": listed([]),
        "/api/groups": listed([]),
        "/api/moves": listed([], "moves") | {"disk_moves_total": 0, "disk_moves": [], "drains": [], "retirements": []},
        "/api/transactions": listed([]) | {"ids": 0, "errors": []},
        "/api/clients": listed([]) | {"errors": []},
        "/api/access": listed([], "rules")
        | {
            "has_authorizer": True, "super_users": [], "allow_everyone": False, "users": [], "user_count": 0, "quotas": [],
            "quota_count": 0, "errors": [],
        },
        "/api/history": listed([]) | {"begins_at": 0, "kinds": [], "who_unknown": []},
    }  # fmt: skip


def large_world() -> World:
    """Make the answers of a cluster with 10,000 topics, and a topic of 10,000 partitions."""
    rows: list[Answer] = [topic_row(f"topic-{number:05}", 1, 0) for number in range(100)]
    return small_world() | {
        "/api/topics": {"total": 10_000, "page": 1, "pages": 100, "rows": rows},
        "/api/topics/wide": topic("wide", 10_000),
    }


def listed(rows: list[Answer], name: str = "rows") -> Shape:
    """Make a list that has one page."""
    return {"total": len(rows), "page": 1, "pages": 1, name: rows}


def session() -> Shape:
    return {
        "user": None, "mechanisms": [], "login_needed": False, "certificate_user": None, "cluster_id": "wZ4hPTqtQxqGbYt0Fz5h1A",
        "version": "0.3.0", "is_kafka": False,
    }  # fmt: skip


def overview() -> Shape:
    troubles: list[Answer] = [
        {
            "severity": "critical", "kind": "broker-down", "sentence": "broker 3 is down since 4 minutes",
            "what_to_do": "start it again, or drain it if it will not return", "link": "/brokers",
            "broker": 3, "path": None, "partitions": [],
        },
        {
            "severity": "warning", "kind": "under-replicated", "sentence": "14 partitions lack a replica in sync",
            "what_to_do": "they catch up by themselves when the broker is back", "broker": None, "path": None,
            "link": "/topics?state=under_replicated", "partitions": ["payments-3"],
        },
    ]  # fmt: skip
    return {
        "judgement": "critical", "is_current": True, "troubles": troubles, "brokers": 3, "brokers_alive": 2,
        "controllers": 3, "active_controller": 2, "topics": 4, "partitions": 82, "offline": 0, "under_replicated": 14,
        "under_min_isr": 0, "moving": 2, "records_per_second": 12_345.6, "bytes_per_second": 9_876_543.0,
        "bytes": 31 * GIB, "version": "4.3", "events_unknown": None,
        "events": [
            {"time_ms": NOW_MS - 240_000, "who": None, "sentence": "broker 3 was fenced"},
            {"time_ms": NOW_MS - 900_000, "who": "User:alice", "sentence": "topic payments has retention.ms=86400000"},
        ],
    }  # fmt: skip


def broker(number: int, *, slow: bool = False, state: str = "online") -> Shape:
    disks: list[Answer] = [] if state == "down" else [disk(at, slow=slow and at == 1) for at in range(2)]
    return {
        "id": number, "host": f"broker{number}.example.net", "port": 9092, "rack": "abc"[number - 1], "state": state,
        "reason": None, "version": None if state == "down" else "4.3", "roles": ["broker", "controller"], "is_active_controller": number == 2, "led": 28, "replicas": 55,
        "offline_replicas": 0, "bytes": 31 * GIB, "bytes_per_second": 1_000_000.0, "disks": disks,
    }  # fmt: skip


def disk(number: int, *, slow: bool) -> Shape:
    return {
        "directory": f"/var/lib/odradek/data-{number}", "state": "online", "is_cordoned": False, "total_bytes": 480 * GIB,
        "usable_bytes": (30 if slow else 300) * GIB, "used_bytes": 31 * GIB, "reserve_bytes": GIB, "replicas": 27,
        "fill_bytes_per_second": 9_000, "hours_left": 17.0 if slow else 1_000.0, "sync_ms": 88.0 if slow else 4.2,
        "usual_sync_ms": 4.0, "is_slow": slow, "is_hung": False, "is_full": False, "errors": 0, "rot": 0,
        "scrub_percent": 40, "scrub_ended_ms": None, "error": None,
    }  # fmt: skip


def quorum(voters: Sequence[int]) -> Shape:
    leader = voters[len(voters) // 2]
    return {
        "leader_id": leader, "leader_epoch": 7, "high_watermark": 9_120, "may_lose": len(voters) // 2, "observers": [],
        "voters": [
            {
                "id": number, "directory_id": f"directory-{number}", "state": "leader" if number == leader else "follower",
                "log_end_offset": 9_120 - (number == 3) * 512, "lag": (number == 3) * 512, "is_silent": number == 3,
                "last_fetch_ms": NOW_MS - number * 400, "last_caught_up_ms": NOW_MS,
                "endpoints": [f"CONTROLLER://broker{number}.example.net:9093"],
            }
            for number in voters
        ],
    }  # fmt: skip


def topic_row(name: str, partitions: int, behind: int) -> Shape:
    return {
        "name": name, "topic_id": f"id-{name}", "partitions": partitions, "replication_factor": 3,
        "is_internal": name.startswith("__"), "under_replicated": behind, "offline": 0, "moving": 0,
        "bytes": partitions * 812 * 1024 * 1024, "records_per_second": 12.5 * partitions, "cleanup_policy": "delete",
    }  # fmt: skip


def topics() -> list[Answer]:
    named = [("__consumer_offsets", 50, 0), ("clicks.raw.v1", 50, 11), ("orders", 20, 0), ("payments", 12, 3)]
    return [topic_row(*each) for each in named]


def partition(number: int) -> Shape:
    replicas = [1 + number % 3, 1 + (number + 1) % 3, 1 + (number + 2) % 3]
    isr = [each for each in replicas if each != 3]
    return {
        "id": number, "leader": isr[0], "leader_epoch": 4, "replicas": replicas, "isr": isr,
        "elr": [3] if number == 5 else [], "last_known_elr": [], "offline_replicas": [3], "adding": [], "removing": [],
        "log_start_offset": 100, "log_end_offset": 120_000 + number * 4_321, "bytes": 73_400_320 * (1 + (number == 7) * 4),
        "error": None,
        "by_broker": [
            {
                "broker": each, "directory": f"/var/lib/odradek/data-{number % 2}", "bytes": 73_400_320, "lag": 0,
                "is_future": False,
            }
            for each in isr
        ],
    }  # fmt: skip


def topic(name: str, partitions: int) -> Shape:
    """Describe a topic: the first page of its partitions."""
    shown = min(partitions, PARTITIONS_PER_PAGE)
    return {
        "name": name, "topic_id": "3sX9Jk", "is_internal": False, "replication_factor": 3, "under_replicated": partitions,
        "offline": 0, "bytes": 9 * GIB, "records_per_second": 150.0, "total": partitions, "page": 1,
        "pages": -(-partitions // PARTITIONS_PER_PAGE), "partitions": [partition(number) for number in range(shown)],
        "skew": {"leaders": 1.42, "bytes": 1.1, "away_from_preferred": 4},
    }  # fmt: skip


def configs() -> list[Answer]:
    def one(name: str, value: str, default: str, source: str, documentation: str) -> Answer:
        return {
            "name": name, "value": value, "default": default, "source": source, "is_default": value == default,
            "is_secret": False, "is_read_only": False, "type": "long", "documentation": documentation,
        }  # fmt: skip

    return [
        one("cleanup.policy", "delete", "delete", "default_config", "Delete or compact old records."),
        one("retention.ms", "86400000", "604800000", "topic_config", "How long records are kept."),
        one("segment.bytes", "1073741824", "1073741824", "default_config", "The size of a segment file."),
    ]


def group_row(name: str, lag: int) -> Shape:
    return {
        "id": name, "type": "consumer", "state": "Stable", "protocol": "consumer", "coordinator": 2, "members": 2,
        "topics": 1, "lag": lag, "unknown_partitions": 0, "behind_ms": lag * 2, "error": None,
    }  # fmt: skip


def member(number: int) -> Shape:
    reads: list[Answer] = [{"topic": "payments", "partitions": [number * 3, number * 3 + 1, number * 3 + 2]}]
    return {
        "member_id": f"consumer-{number}-6f1c2d1e", "instance_id": None, "client_id": f"billing-{number}",
        "host": "/10.0.0.7", "rack": None, "protocol": "consumer", "epoch": 3, "assignment": reads, "target": reads,
        "is_moving": False, "topics": ["payments"], "pattern": None,
    }  # fmt: skip


def group(name: str) -> Shape:
    offsets: list[Answer] = [
        {
            "topic": "payments", "partition": number, "committed": 120_000, "log_start_offset": 100,
            "log_end_offset": 120_000 + 351 * number, "lag": 351 * number, "behind_ms": 800 * number,
            "trend_per_second": -1.0, "zero_in_ms": 351_000 * number, "member_id": f"consumer-{number // 3}-6f1c2d1e",
            "error": None,
        }
        for number in range(6)
    ]  # fmt: skip
    return {
        "id": name, "type": "consumer", "state": "Stable", "protocol": "uniform", "coordinator": 2, "epoch": 3,
        "assignment_epoch": 3, "member_count": 2, "members": [member(0), member(1)], "lag": 5_265,
        "unknown_partitions": 0, "behind_ms": 4_000,
        "trend": {"measured_ms": 5_000, "read_per_second": 40.0, "written_per_second": 34.0, "zero_in_ms": 877_500},
        "total": 6, "page": 1, "pages": 1, "offsets": offsets,
    }  # fmt: skip


def moves() -> Shape:
    rows: list[Answer] = [
        {
            "topic": "orders", "partition": number, "from": [3], "to": [1], "replicas": [1, 2],
            "bytes_done": (number + 1) * GIB, "bytes_total": 4 * GIB, "bytes_per_second": 48_000_000.0, "eta_ms": 64_000,
            "throttle_bytes_per_second": 50_000_000,
        }
        for number in range(2)
    ]  # fmt: skip
    disk_move: Answer = {
        "topic": "orders", "partition": 7, "broker": 2, "from": "/var/lib/odradek/data-0", "to": "/var/lib/odradek/data-1",
        "bytes_done": GIB, "bytes_total": 2 * GIB, "records_left": 120, "bytes_per_second": 9e6, "eta_ms": 9_000,
        "throttle_bytes_per_second": None,
    }  # fmt: skip
    return listed(rows, "moves") | {
        "disk_moves_total": 1,
        "disk_moves": [disk_move],
        "drains": [{"broker": 3, "moving": 2, "staying": 53, "bytes_left": 5 * GIB}],
        "retirements": [
            {
                "broker": 1, "directory": "/var/lib/odradek/data-1", "replicas_left": 3, "bytes_left": GIB,
                "is_released": False,
            }
        ],
    }  # fmt: skip


def transactions() -> list[Answer]:
    usual: Shape = {
        "transactional_id": "billing-1", "producer_id": 4_000, "producer_epoch": 2, "state": "Ongoing",
        "prospect": "open", "coordinator": 1, "start_ms": NOW_MS - 320, "age_ms": 320, "timeout_ms": 60_000,
        "partition_count": 1, "partitions": [{"topic": "payments", "partition": 1}], "holds_up": [], "refused_by": [],
        "is_hanging": False, "is_late": False,
    }  # fmt: skip
    held: Answer = {
        "topic": "payments", "partition": 3, "last_stable_offset": 119_000, "records_behind": 1_412, "groups": ["audit"],
    }  # fmt: skip
    hanging: Shape = {
        "transactional_id": None, "producer_id": 4_001, "state": "", "prospect": "hanging", "coordinator": None,
        "age_ms": 5_400_000, "timeout_ms": None, "partitions": [{"topic": "payments", "partition": 3}],
        "holds_up": [held], "is_hanging": True,
    }  # fmt: skip
    return [usual | hanging, usual]


def client(number: int) -> Shape:
    return {
        "client_id": f"billing-{number}", "library": "librdkafka", "version": "2.10.0", "user": "User:billing",
        "address": f"10.0.0.{number}", "broker": 1, "groups": ["billing"], "connections": 3,
        "bytes_in_per_second": 900_000.0, "bytes_out_per_second": 12_000.0, "throttled": number == 1,
        "throttled_ms": 120.0 if number == 1 else 0.0, "pushes": 12 if number == 2 else None,
        "since_push_ms": 800, "push_interval_ms": 5_000,
        "figures": [{"role": "consumer", "name": "fetch.latency.avg", "value": 4.25}] if number == 2 else [],
    }  # fmt: skip


def rule(principal: str, permission: str, operation: str, name: str, pattern: str) -> Shape:
    return {
        "principal": principal, "permission": permission, "operation": operation, "resource_type": "topic",
        "resource_name": name, "pattern_type": pattern, "host": "*",
    }  # fmt: skip


def access() -> Shape:
    rules: list[Answer] = [
        rule("User:alice", "allow", "write", "pay", "prefixed"),
        rule("User:mallory", "deny", "all", "*", "literal"),
    ]
    quota: Answer = {
        "user": "alice",
        "client_id": None,
        "ip": None,
        "key": "producer_byte_rate",
        "value": 1_048_576.0,
    }
    return listed(rules, "rules") | {
        "has_authorizer": True, "super_users": ["User:admin"], "allow_everyone": False,
        "users": [{"name": "alice", "credentials": [{"mechanism": "SCRAM-SHA-256", "iterations": 8_192}]}],
        "user_count": 1, "quotas": [quota], "quota_count": 1, "errors": [],
    }  # fmt: skip


def change(
    offset: int, kind: str, who: str | None, what: str, *, before: str | None, after: str | None
) -> Shape:
    return {
        "time_ms": NOW_MS - 60_000, "offset": offset, "kind": kind, "who": who, "controller": 2, "what": what,
        "subjects": ["topic payments"], "subject_count": 1, "before": before, "after": after,
    }  # fmt: skip


def history() -> list[Answer]:
    return [
        change(812, "config", "User:alice", "topic payments has retention.ms=86400000", before="604800000", after="86400000"),
        change(799, "isr", "controller 2", "partition payments-3 has lost broker 3", before="1, 2, 3", after="1, 2"),
        change(701, "topic", "User:alice", "topic payments was created", before=None, after=None),
    ]  # fmt: skip


def decoded(text: str | None, form: str = "text", *, is_cut: bool = False, error: str | None = None) -> Shape:
    """Make the text of a key or a value."""
    return {
        "format": "null" if text is None else form, "text": text, "schema_id": None, "error": error, "is_cut": is_cut,
        "size_bytes": len(text or ""),
    }  # fmt: skip


def record(number: int, offset: int, **changes: Answer) -> Shape:
    """Make one record, with a value of JSON."""
    text = '{"id":12345678901234567890,"price":9.90,"to":"café","tags":["a","b"],"ok":true,"note":null,"empty":{}}'
    found: Shape = {
        "partition": number, "offset": offset, "timestamp_ms": NOW_MS - 1_000 * offset, "timestamp_type": "create",
        "key": decoded(f"customer-{offset}"), "value": decoded(text, "json"),
        "headers": [{"name": "trace", "value": decoded("a1b2")}], "header_count": 1,
        "transaction": {"producer_id": 7, "state": "aborted"} if offset % 7 == 3 else None,
        "size_bytes": 171, "is_control": False, "error": None, "next_offset": offset + 1,
    }  # fmt: skip
    return found | changes
