"""If a history is split by key, the parts together show the same anomalies as the whole. These tests run without
Spark."""

from __future__ import annotations

import json
import random

import pytest

from jepsen_tests.checkers import version_orders
from jepsen_tests.histories import BY_KEY, EVERYWHERE, KINDS_OF_TROUBLE, judge, parts
from jepsen_tests.history import Assign, Commit, History, Own, Poll, Restart, Send

KEYS = ["t-0", "t-1", "u-0"]


def troubled_history(seed: int, length: int = 300) -> History:
    """Draw operations at random, so that the history has every anomaly and many legal steps."""
    rng = random.Random(seed)
    history = History()
    values = dict.fromkeys(KEYS, 0)
    for number in range(length):
        process, key = rng.choice("pqr"), rng.choice(KEYS)
        now = float(number)
        kind = rng.random()
        if kind < 0.5:
            values[key] += 1
            outcome = rng.choice(["ok", "ok", "ok", "fail", "info"])
            offset = values[key] + rng.choice([0, 0, 0, 0, 1, -1]) if outcome == "ok" else None
            sent = Send(process, now, key, values[key], now + rng.random() * 3, outcome, offset)  # type: ignore[arg-type] # a literal
            history.operations.append(sent)
        elif kind < 0.85:
            records = {
                each: [
                    (offset, max(-1, offset + rng.choice([0] * 8 + [1, -2])))
                    for offset in range(start, start + rng.randrange(6))[:: rng.choice([1, 1, 2, -1])]
                ]
                for each in rng.sample(KEYS, rng.randrange(1, 3))
                for start in [rng.randrange(1, values[each] + 2)]
            }
            history.operations.append(
                Poll(
                    process,
                    now,
                    now + 0.5,
                    rng.choice(["ok", "ok", "info"]),
                    records,  # type: ignore[arg-type] # a literal
                    rng.sample(KEYS, rng.randrange(2)),
                    number > length - 15,
                )
            )
        elif kind < 0.9:
            history.operations.append(Assign(process, now, rng.sample(KEYS, rng.randrange(1, 4))))
        elif kind < 0.94:
            history.operations.append(Own(process, now, "g", rng.sample(KEYS, 2)))
        elif kind < 0.98:
            offsets = {each: rng.randrange(values[each] + 2) for each in rng.sample(KEYS, 2)}
            history.operations.append(Commit(process, now, "g", offsets, now + 1, "ok"))
        else:
            history.operations.append(Restart(process, now, "a gap"))
    return history


@pytest.mark.parametrize("seed", range(8))
def test_parts_are_judged_as_the_whole(seed: int) -> None:
    """The parts show the same anomalies, with the same texts, as the whole history, in any order of the keys."""
    history = troubled_history(seed)
    lines = list(history.to_lines())
    by_key: dict[str, list[tuple[int, str]]] = {}
    whole = [(number, line) for number, line in enumerate(lines) if json.loads(line)["kind"] in EVERYWHERE]
    for number, line in enumerate(lines):
        for key, part in parts(line):
            by_key.setdefault(key, []).append((number, part))
    found = [
        anomaly
        for key, mine in by_key.items()
        for anomaly in judge(key, [line for _, line in sorted(mine + whole)])
    ]
    orders = version_orders(history)
    expected = [anomaly for checker in BY_KEY for anomaly in checker(history, orders)]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert len({anomaly.name for anomaly in expected}) > 6


def test_every_name_of_an_anomaly_means_something() -> None:
    """Each anomaly that the checkers find belongs to a kind: lost, duplicated, reordered or never written."""
    names = {name for names in KINDS_OF_TROUBLE.values() for name in names}
    found = set()
    for seed in range(30):
        history = troubled_history(seed)
        orders = version_orders(history)
        found |= {anomaly.name for checker in BY_KEY for anomaly in checker(history, orders)}
    assert found <= names
    assert names - found <= {"int-nonmonotonic-send"}


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"kind":"send"}', '{"kind":"poll","records":3}', "nonsense"]
)
def test_lines_that_are_no_operations(line: str) -> None:
    """A line that is no operation raises an error that shows the line."""
    with pytest.raises(ValueError, match="a line is not an operation of a history"):
        list(parts(line))
