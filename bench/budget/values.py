"""Values for fields of expensive requests: names of things that exist on the measured node, and any number of other
names.
"""

from __future__ import annotations

from bench.budget.frames import Stage

TIMEOUT_MS = 5000
HARD_PATTERN = "(?i)" + "\\pL" * 6_000
"""A pattern that RE2 would need most of a second to compile."""
DEAR_PATTERN = "[^a-z]\\W[a-z]" * 300
"""A pattern that a node permits, although RE2 needs some milliseconds to compile it."""
WITH_TIMEOUT = {"timeout_ms": TIMEOUT_MS}


def wide(stage: Stage, number: int) -> str:
    return stage.wide


def wide_id(stage: Stage, number: int) -> bytes:
    return stage.wide_id


def partition(stage: Stage, number: int) -> int:
    return number % stage.wide_partitions


def narrow(stage: Stage, number: int) -> str:
    return stage.narrow[number % len(stage.narrow)]


def distinct(stage: Stage, number: int) -> str:
    return f"n{number}"


def group(stage: Stage, number: int) -> str:
    return stage.group


def any_group(stage: Stage, number: int) -> str:
    return stage.groups[number % len(stage.groups)]


def transactional_id(stage: Stage, number: int) -> str:
    return stage.transactional_id


def producer_id(stage: Stage, number: int) -> int:
    return stage.producer_id


def cluster(stage: Stage, number: int) -> str:
    return stage.cluster_id


def epoch(stage: Stage, number: int) -> int:
    return stage.second_broker_epoch
