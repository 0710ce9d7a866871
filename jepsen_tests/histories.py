"""A history of clients, taken apart by key, so that each part can be judged by itself. PURE.

The checkers of `jepsen_tests` that ask whether records were lost, doubled or reordered look at one key at a time.
They need to know two more things. One is who took keys by hand (`assign`, which starts all keys of a process anew).
The other is when a producer began anew (`restart`). So the part of a key has all operations that name it, with
everything about other keys left out. Those two kinds are in it whole. The verdicts on the parts together are the
verdict on the whole (tests/jepsen/test_histories.py).

Deliberately absent: the checkers of cycles between operations, which look at all keys together and want the whole
history in one place (`python -m jepsen_tests` runs them).
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
"""The checkers whose verdict on a key needs nothing of other keys."""

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
"""The names of anomalies, by the trouble that they mean for the writer of the records."""

EVERYWHERE = ("assign", "restart")
"""Kinds of operations that belong to the part of every key."""


def parts(line: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that an operation (a line of JSON) names, each with what the line says about it.

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
        raise ValueError(f"a line is no operation of a history ({error!r}): {line[:200]}") from None


def judge(key: str, lines: Iterable[str]) -> list[Anomaly]:
    """Judge the part of one key: its lines, and those of `EVERYWHERE`, in the order of the history."""
    history = History.from_lines(lines)
    for operation in history.operations:
        if hasattr(operation, "keys"):
            operation.keys = [each for each in operation.keys if each == key]
    orders = version_orders(history)
    return [anomaly for checker in BY_KEY for anomaly in checker(history, orders)]
