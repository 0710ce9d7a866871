"""Answers of the console's API for tests of its pages: a small cluster, an empty one, and a very large one.

The shapes are those of `/api/openapi.json`. A world is a mapping from an address without its query to an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["NOW_MS", "Answer", "World", "empty_world", "large_topic", "small_world"]

Answer: TypeAlias = "Mapping[str, Answer] | list[Answer] | str | int | float | bool | None"
World = dict[str, Answer]
NOW_MS = 1_790_000_000_000
GIB = 1 << 30


def small_world() -> World:
    """Make the answers of a cluster of three brokers: one is down, one disk is slow, a transaction hangs."""
    return {
        "/api/session": session(),
        "/api/overview": overview(),
        "/api/brokers": [broker(1), broker(2, slow=True), broker(3, state="down")],
        "/api/quorum": quorum(),
        "/api/topics": {"total": 4, "page_size": 100, "rows": topics()},
        "/api/topics/payments": topic("payments", 12),
        "/api/topics/payments/configs": configs(),
        "/api/topics/payments/groups": [
            {
                "id": "billing",
                "type": "consumer",
                "state": "stable",
                "members": 2,
                "lag": 4213,
                "behind_ms": 9300,
            },
        ],
        "/api/groups": [
            group_row("billing", 4213, -12.5),
            group_row("audit", 0, 0.0),
            group_row("slow", 91234, 40.0),
        ],
        "/api/groups/billing": group(),
        "/api/moves": moves(),
        "/api/transactions": transactions(),
        "/api/clients": clients(),
        "/api/access": access(),
        "/api/access/check": {
            "allowed": True,
            "why": "the rule 'User:alice may write topics that begin with pay' allows it",
        },
        "/api/history": {"total": 3, "page_size": 100, "rows": history()},
        "/api/message": record(0, 41),
    }


def empty_world() -> World:
    """Make the answers of a cluster of one broker that holds nothing."""
    one = overview() | {
        "judgement": "ok", "troubles": [], "brokers": 1, "brokers_alive": 1, "controllers": 1, "topics": 0,
        "partitions": 0, "offline": 0, "under_replicated": 0, "under_min_isr": 0, "moving": 0,
        "records_per_second": None, "bytes_per_second": None, "events": [],
    }  # fmt: skip
    return {
        "/api/session": session(),
        "/api/overview": one,
        "/api/brokers": [broker(1)],
        "/api/quorum": quorum() | {"voters": quorum()["voters"][:1], "observers": []},
        "/api/topics": {"total": 0, "page_size": 100, "rows": []},
        "/api/groups": [],
        "/api/moves": {"moves": [], "drains": [], "retirements": []},
        "/api/transactions": [],
        "/api/clients": [],
        "/api/access": {"acls": [], "users": [], "quotas": []},
        "/api/history": {"total": 0, "page_size": 100, "rows": []},
    }


def session() -> dict[str, Answer]:
    return {
        "user": None,
        "mechanisms": [],
        "login_needed": False,
        "cluster_id": "wZ4hPTqtQxqGbYt0Fz5h1A",
        "version": "0.3.0",
        "is_kafka": False,
    }


def overview() -> dict[str, Answer]:
    troubles: list[Answer] = [
        {
            "severity": "critical", "kind": "broker-down", "sentence": "broker 3 is down since 4 minutes",
            "what_to_do": "start it again, or drain it if it will not return", "link": "/brokers",
            "broker": 3, "path": None, "partitions": [],
        },
        {
            "severity": "warning", "kind": "under-replicated", "sentence": "14 partitions lack a replica in sync",
            "what_to_do": "they catch up by themselves when the broker is back", "link": "/topics?state=under_replicated",
            "broker": None, "path": None, "partitions": ["payments-3"],
        },
    ]  # fmt: skip
    return {
        "judgement": "critical", "is_current": True, "troubles": troubles, "brokers": 3, "brokers_alive": 2,
        "controllers": 3, "active_controller": 2, "topics": 4, "partitions": 82, "offline": 0, "under_replicated": 14,
        "under_min_isr": 0, "moving": 2, "records_per_second": 12_345.6, "bytes_per_second": 9_876_543.0,
        "bytes": 31 * GIB, "version": "0.3.0",
        "events": [
            {"time_ms": NOW_MS - 240_000, "who": "controller 2", "sentence": "broker 3 was fenced: no heartbeat for 9 s"},
            {"time_ms": NOW_MS - 9_000_000, "who": "User:alice", "sentence": "topic payments was made with 12 partitions"},
        ],
    }  # fmt: skip


def broker(number: int, *, slow: bool = False, state: str = "alive") -> dict[str, Answer]:
    disks: list[Answer] = []
    if state == "alive":
        disks = [
            {
                "directory": f"/var/lib/odradek/data-{at}", "state": "online", "total_bytes": 480 * GIB,
                "usable_bytes": (400 - 150 * at * (1 + slow)) * GIB, "used_bytes": 31 * GIB * (at + 1),
                "hours_left": 1_000 if not slow else 17, "sync_ms": 4.2, "is_slow": slow and at == 1,
                "is_hung": False, "rot": 0,
            }
            for at in range(2)
        ]  # fmt: skip
    return {
        "id": number, "host": f"broker{number}.example.net", "port": 9092, "rack": "abc"[number - 1], "state": state,
        "roles": ["broker", "controller"], "version": "0.3.0", "epoch": 17 * number, "led": 28, "replicas": 55,
        "bytes": 31 * GIB, "disks": disks,
    }  # fmt: skip


def quorum() -> dict[str, list[Answer]]:
    voters: list[Answer] = [
        {
            "id": number,
            "log_end_offset": 9_120 - (number == 3) * 512,
            "last_fetch_ms": NOW_MS - number * 400,
            "directory_id": "x",
        }
        for number in (1, 2, 3)
    ]
    found: dict[str, list[Answer]] = {"voters": voters, "observers": []}
    return found | {"leader_id": 2, "leader_epoch": 7, "high_watermark": 9_120}  # type: ignore[dict-item]


def topics() -> list[Answer]:
    names = [("payments", 12, 3), ("orders", 20, 0), ("clicks.raw.v1", 50, 11), ("__consumer_offsets", 50, 0)]
    return [
        {
            "name": name, "topic_id": f"id-{name}", "partitions": count, "replication_factor": 3,
            "is_internal": name.startswith("__"), "under_replicated": behind, "offline": 0,
            "bytes": count * 812 * 1024 * 1024, "records_per_second": 12.5 * count, "cleanup_policy": "delete",
        }
        for name, count, behind in names
    ]  # fmt: skip


def partition(number: int) -> dict[str, Answer]:
    replicas: list[Answer] = [1 + number % 3, 1 + (number + 1) % 3, 1 + (number + 2) % 3]
    isr = [each for each in replicas if each != 3]
    return {
        "id": number, "leader": isr[0], "replicas": replicas, "isr": isr, "elr": [3] if number == 5 else [],
        "log_start_offset": 100, "log_end_offset": 120_000 + number * 4_321, "bytes": 73_400_320 * (1 + (number == 7) * 4),
        "by_broker": [
            {"broker": each, "directory": f"/var/lib/odradek/data-{number % 2}", "bytes": 73_400_320, "lag": 0}
            for each in isr
        ],
    }  # fmt: skip


def topic(name: str, count: int) -> dict[str, Answer]:
    return {
        "name": name, "topic_id": "3sX9Jk", "is_internal": False, "replication_factor": 3, "bytes": 9 * GIB,
        "records_per_second": 150.0, "partitions": [partition(number) for number in range(count)], "skew": 1.42,
    }  # fmt: skip


def large_topic() -> World:
    """Make a topic of 10,000 partitions, and a list that has it."""
    row = {**topics()[0], "name": "wide", "partitions": 10_000, "under_replicated": 0}  # type: ignore[dict-item]
    return {
        "/api/topics/wide": topic("wide", 10_000),
        "/api/topics": {"total": 10_000, "page_size": 100, "rows": [row]},
    }


def configs() -> list[Answer]:
    def one(name: str, value: str, default: str, source: str, documentation: str) -> Answer:
        return {
            "name": name, "value": value, "default": default, "source": source, "is_default": value == default,
            "documentation": documentation, "type": "long",
        }  # fmt: skip

    return [
        one("retention.ms", "86400000", "604800000", "DYNAMIC_TOPIC_CONFIG", "How long records are kept."),
        one("segment.bytes", "1073741824", "1073741824", "DEFAULT_CONFIG", "The size of a segment file."),
        one("cleanup.policy", "delete", "delete", "DEFAULT_CONFIG", "Delete or compact old records."),
    ]


def group_row(name: str, lag: int, trend: float) -> dict[str, Answer]:
    return {
        "id": name, "type": "consumer", "state": "stable", "protocol": "uniform", "coordinator": 2, "members": 2,
        "lag": lag, "behind_ms": lag * 2, "trend_per_second": trend,
        "zero_in_ms": int(lag / -trend * 1000) if trend < 0 else None,
    }  # fmt: skip


def group() -> dict[str, Answer]:
    def offset(number: int) -> Answer:
        return {
            "topic": "payments", "partition": number, "committed": 120_000, "log_end_offset": 120_000 + 351 * number,
            "lag": 351 * number, "behind_ms": 800 * number, "trend_per_second": -1.0, "zero_in_ms": 351_000 * number,
        }  # fmt: skip

    members: list[Answer] = [
        {
            "member_id": f"consumer-{at}-6f1c2d1e", "client_id": f"billing-{at}", "host": "/10.0.0.7",
            "assignment": [{"topic": "payments", "partition": each} for each in range(at * 3, at * 3 + 3)],
        }
        for at in range(2)
    ]  # fmt: skip
    return {
        "id": "billing", "type": "consumer", "state": "stable", "protocol": "uniform", "coordinator": 2,
        "members": members, "offsets": [offset(number) for number in range(6)],
    }  # fmt: skip


def moves() -> dict[str, Answer]:
    return {
        "moves": [
            {
                "topic": "orders", "partition": number, "from": [3], "to": [1], "bytes_done": (number + 1) * GIB,
                "bytes_total": 4 * GIB, "throttle": 50_000_000, "eta_ms": 64_000,
            }
            for number in range(2)
        ],
        "drains": [],
        "retirements": [],
    }  # fmt: skip


def transactions() -> list[Answer]:
    hanging: Answer = {
        "transactional_id": None, "producer_id": 4_001, "state": "ongoing", "coordinator": None, "age_ms": 5_400_000,
        "timeout_ms": None, "partitions": [{"topic": "payments", "partition": 3}], "is_hanging": True,
        "holds_up": [{"topic": "payments", "partition": 3, "last_stable_offset": 119_000, "records_behind": 1_412}],
    }  # fmt: skip
    ordinary: Answer = {
        "transactional_id": "billing-1", "producer_id": 4_000, "state": "ongoing", "coordinator": 1, "age_ms": 320,
        "timeout_ms": 60_000, "partitions": [{"topic": "payments", "partition": 1}], "is_hanging": False, "holds_up": [],
    }  # fmt: skip
    return [hanging, ordinary]


def clients() -> list[Answer]:
    return [
        {
            "client_id": f"billing-{at}", "library": "librdkafka", "version": "2.10.0", "user": "User:billing",
            "address": f"10.0.0.{at}", "connections": 3, "bytes_in_per_second": 12_000.0, "bytes_out_per_second": 900_000.0,
            "throttled": at == 1, "pushes": ["consumer.fetch.latency.avg"] if at == 2 else [],
        }
        for at in range(3)
    ]  # fmt: skip


def access() -> dict[str, Answer]:
    return {
        "acls": [
            {"principal": "User:alice", "host": "*", "operation": "write", "permission": "allow",
             "resource_type": "topic", "resource_name": "pay", "pattern_type": "prefixed"},
            {"principal": "User:mallory", "host": "*", "operation": "all", "permission": "deny",
             "resource_type": "topic", "resource_name": "*", "pattern_type": "literal"},
        ],
        "users": [{"name": "alice", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": 8192}],
        "quotas": [{"entity": {"user": "alice"}, "limits": {"producer_byte_rate": 1_048_576.0}}],
    }  # fmt: skip


def history() -> list[Answer]:
    return [
        {"time_ms": NOW_MS - 60_000, "offset": 812, "who": "User:alice", "what": "topic payments: retention.ms was set",
         "before": "604800000", "after": "86400000"},
        {"time_ms": NOW_MS - 90_000, "offset": 799, "who": None, "what": "partition payments-3: broker 3 left the ISR",
         "before": "[1, 2, 3]", "after": "[1, 2]"},
        {"time_ms": NOW_MS - 990_000, "offset": 701, "who": "User:alice", "what": "topic payments was made", "before": None,
         "after": None},
    ]  # fmt: skip


def record(number: int, offset: int, **changes: Answer) -> dict[str, Answer]:
    """Make one record, with a value of JSON."""
    text = '{"id":12345678901234567890,"price":9.90,"to":"café","tags":["a","b"],"ok":true,"note":null}'
    found: dict[str, Answer] = {
        "partition": number, "offset": offset, "timestamp_ms": NOW_MS - 1_000 * offset, "timestamp_type": "create_time",
        "key": {"format": "text", "text": f"customer-{offset}", "schema_id": None, "error": None, "is_cut": False, "size_bytes": 11},
        "value": {"format": "json", "text": text, "schema_id": None, "error": None, "is_cut": False, "size_bytes": 96},
        "headers": [{"name": "trace", "value": {"format": "text", "text": "a1b2", "schema_id": None, "error": None,
                                                "is_cut": False, "size_bytes": 4}}],
        "transaction": {"producer_id": 7, "state": "aborted"} if offset % 7 == 3 else None,
        "size_bytes": 171, "is_control": False,
    }  # fmt: skip
    return found | changes
