"""Named states: the table lists exactly the states that the product reports, and reporting costs nothing in
production. Each world counts its own states."""

from __future__ import annotations

import ast
import dis
from collections import Counter
from pathlib import Path

import pytest

from odradek.named_states import counting, reached
from sim.census.states import STATES
from sim.machine.weather import Weather
from sim.machine.world import World

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("wire", "metadata_quorum", "data_plane", "odradek", "spark")


def named_in(path: Path) -> list[str]:
    """List the names that a module passes to `reached`. Fails if an argument is anything but a string constant."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reached":
            assert not node.keywords, f"{path}:{node.lineno}"
            (argument,) = node.args
            assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}"
            assert isinstance(argument.value, str), f"{path}:{node.lineno}"
            names.append(argument.value)
    return names


def test_each_state_has_a_row_and_one_place() -> None:
    """Each named state is in the table and has exactly one call of `reached`. A second call could hide an unreached
    place."""
    found: Counter[str] = Counter()
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            found.update(named_in(path))
    assert [name for name, times in found.items() if times > 1] == []
    assert sorted(found) == sorted(STATES)


def test_production_pays_an_empty_function() -> None:
    """In production `reached` is an empty function, whose code is the shortest of this Python."""

    def empty() -> None:
        pass

    of_reached, of_empty = ([each.opname for each in dis.get_instructions(one)] for one in (reached, empty))
    assert of_reached == of_empty


def test_contexts_nest() -> None:
    """Counting contexts can be nested. The outer context also counts the states of the inner one, and after the last
    context nothing is counted."""
    outer: dict[str, int] = {}
    inner: dict[str, int] = {}
    before = reached.__code__
    with counting(outer):
        reached("a.one")
        with counting(inner):
            reached("a.other")
        reached("a.one")
    reached("a.third")
    assert (outer, inner) == ({"a.one": 2, "a.other": 1}, {"a.other": 1})
    assert reached.__code__ is before


def test_an_error_ends_the_counting() -> None:
    """When a run fails, counting ends. Later runs in the same process are not added to its counts."""
    counts: dict[str, int] = {}
    with pytest.raises(ValueError, match="it"), counting(counts):
        raise ValueError("it")
    reached("a.state")
    assert counts == {}


def test_worlds_count_apart() -> None:
    """Two worlds in one process, created before either runs, count their states separately."""
    one, other = World(1, Weather()), World(2, Weather())

    async def reach(world: World, times: int) -> None:
        for _ in range(times):
            await world.sleep(1.0)
            reached("a.state")

    one.run(reach, one, 2)
    other.run(reach, other, 3)
    assert one.states == {"a.state": 2}
    assert other.states == {"a.state": 3}
