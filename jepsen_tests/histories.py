"""Splits a history of clients by key, so that the part of each key can be checked alone. PURE.

The checkers for lost, duplicated or reordered records need only one key at a time. In addition they need all operations
of two kinds. In an operation of kind `assign`, a consumer begins all its keys again. In an operation of kind `restart`,
a producer restarts its sequence. So the part of a key has all operations that name the key, without data about other
keys, and all operations of these two kinds. All parts together give the same result as the whole history
(tests/jepsen/test_histories.py).

Deliberately absent: the checkers for cycles between operations, which need all keys at the same time (`python -m
jepsen_tests` runs them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from jepsen_tests.checkers import (
    CHECKERS,
    Anomaly,
    circular_information_flow,
    precommitted_read,
    version_orders,
)
from jepsen_tests.history import History

__all__ = ["BY_KEY", "EVERYWHERE", "KINDS_OF_TROUBLE", "judge", "parts"]

BY_KEY = tuple(each for each in CHECKERS if each not in (precommitted_read, circular_information_flow))
"""The checkers that need only one key at a time."""

KINDS_OF_TROUBLE = {
    "lost": ("lost-write", "unseen", "vanished", "poll-skip", "int-poll-skip", "lost-commit"),
    "doubled": ("duplicate",),
    "reordered": (
        "inconsistent-offsets",
        "nonmonotonic-send",
        "int-nonmonotonic-send",
        "nonmonotonic-poll",
        "int-nonmonotonic-poll",
    ),
    "never written": ("wrong-bytes", "G1a"),
}
"""The names of anomalies, grouped by their effect on records, e.g. that a record is lost or doubled."""

EVERYWHERE = ("assign", "restart")
"""Kinds of operations that are part of every key's history."""


def parts(line: str) -> Iterator[tuple[str, str]]:
    """Yield each key that an operation (a line of JSON) names, with a line that has only the data about this key.

    Raises `ValueError` for a line that is not an operation.
    """
    try:
        fields: dict[str, Any] = json.loads(line)
        kind = fields["kind"]
        if kind == "send":
            yield fields["key"], line
        elif kind == "poll":
            for key, records in fields["records"].items():
                rebalanced = [key] if key in fields["rebalanced"] else []
                yield key, json.dumps({**fields, "records": {key: records}, "rebalanced": rebalanced})
        elif kind == "own":
            for key in fields["keys"]:
                yield key, json.dumps({**fields, "keys": [key]})
        elif kind == "commit":
            for key, offset in fields["offsets"].items():
                yield key, json.dumps({**fields, "offsets": {key: offset}})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a line is not an operation of a history ({error!r}): {line[:200]}") from None


def judge(key: str, lines: Iterable[str]) -> list[Anomaly]:
    """Check the history of one key: the lines of the key and the lines of the kinds `EVERYWHERE`, in order. Return the
    anomalies.
    """
    history = History.from_lines(lines)
    for operation in history.operations:
        if hasattr(operation, "keys"):
            operation.keys = [each for each in operation.keys if each == key]
    orders = version_orders(history)
    return [anomaly for checker in BY_KEY for anomaly in checker(history, orders)]
