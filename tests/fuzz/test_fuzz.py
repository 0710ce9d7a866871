"""Any bytes at every entrance of bytes: seeds, what fuzzers have found, and some changes of both.

`make fuzz` looks much further, with coverage: `python -m tests.fuzz --help`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import corpus
from tests.fuzz.corpus import keep_crash, keep_finds, kept
from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

CHANGED = {"logs": 150}
"""The number of changed inputs for targets whose inputs cost more than most."""
FULL = 1000


@pytest.fixture(params=TARGETS.values(), ids=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    """Each target in turn."""
    found: Target = request.param
    return found


def run_all(target: Target, inputs: Iterator[bytes] | list[bytes]) -> None:
    """Run all inputs; the first that breaks a rule is in the error."""
    for data in inputs:
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(f"input of {target.name}: {data.hex()}")
            raise


def test_kept_inputs_break_no_rule(target: Target) -> None:
    """What fuzzers have found once, crashes among it, is taken or refused properly."""
    assert kept(target.name), "the corpus is empty"
    run_all(target, kept(target.name))


def test_changed_inputs_break_no_rule(target: Target) -> None:
    """Seeds, and inputs that differ from seeds and kept ones in a few places, are taken or refused properly."""
    seeds = list(target.seeds())
    run_all(target, seeds)
    count = CHANGED.get(target.name, FULL)
    run_all(target, list(mutated([*seeds, *kept(target.name)], count, Random(44))))


def test_a_broken_rule_is_seen() -> None:
    """The runner raises what a target raises, and names the input."""

    def refuse(data: bytes) -> None:
        assert data != b"bad"

    with pytest.raises(AssertionError) as caught:
        run_all(Target("none", refuse, lambda: ()), [b"good", b"bad"])
    assert caught.value.__notes__ == [f"input of none: {b'bad'.hex()}"]


def test_crashes_outlive_new_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer's finds replace older finds, the smallest first up to the room that there is; a crash stays with its reason."""
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    monkeypatch.setattr(corpus, "KEPT_BYTES_MAX", 20)
    assert keep_finds("x", [b"old"]) == 1
    assert keep_crash("x", b"crash", "a reason")
    assert not keep_crash("x", b"crash", "a reason")
    assert keep_finds("x", [b"a" * 30, b"crash", b"new", b"n"]) == 2
    assert kept("x") == [b"crash", b"n", b"new"]
    assert (tmp_path / "x.txt").read_text().startswith("# a reason\n")
