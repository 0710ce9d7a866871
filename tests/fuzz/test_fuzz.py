"""Every place where bytes enter withstands seeds, earlier finds of fuzzers, and some changes of both.

`make fuzz` tries many more inputs, guided by coverage: see `python -m tests.fuzz --help`.
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
"""How many changed inputs are tried for targets with slow inputs. Other targets get more."""
FULL = 1000


@pytest.fixture(params=TARGETS.values(), ids=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    """Return each target in turn."""
    found: Target = request.param
    return found


def run_all(target: Target, inputs: Iterator[bytes] | list[bytes]) -> None:
    """Run all inputs. The error shows the first input that breaks a rule."""
    for data in inputs:
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(f"input of {target.name}: {data.hex()}")
            raise


def test_kept_inputs_break_no_rule(target: Target) -> None:
    """Inputs that fuzzers have found, crashes among them, are accepted or properly refused."""
    assert kept(target.name), "the corpus is empty"
    run_all(target, kept(target.name))


def test_changed_inputs_break_no_rule(target: Target) -> None:
    """Seeds, and inputs that differ from seeds or kept ones in a few places, are accepted or properly refused."""
    seeds = list(target.seeds())
    run_all(target, seeds)
    count = CHANGED.get(target.name, FULL)
    run_all(target, list(mutated([*seeds, *kept(target.name)], count, Random(44))))


def test_a_broken_rule_is_seen() -> None:
    """If a target raises, the runner raises an error that names the input."""

    def refuse(data: bytes) -> None:
        assert data != b"bad"

    with pytest.raises(AssertionError) as caught:
        run_all(Target("none", refuse, lambda: ()), [b"good", b"bad"])
    assert caught.value.__notes__ == [f"input of none: {b'bad'.hex()}"]


def test_crashes_outlive_new_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New finds of a fuzzer replace older ones, the smallest first, up to a limit. A crash stays with its reason."""
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    monkeypatch.setattr(corpus, "KEPT_BYTES_MAX", 20)
    assert keep_finds("x", [b"old"]) == 1
    assert keep_crash("x", b"crash", "a reason")
    assert not keep_crash("x", b"crash", "a reason")
    assert keep_finds("x", [b"a" * 30, b"crash", b"new", b"n"]) == 2
    assert kept("x") == [b"crash", b"n", b"new"]
    assert (tmp_path / "x.txt").read_text().startswith("# a reason\n")
