"""The pinned runs of the simulator's benchmark: this tree must still understand their options."""

from __future__ import annotations

import json

import pytest

from bench.programs.simulator import OPTIONS
from sim.options import RunOptions

PINNED = json.loads(OPTIONS.read_text())


@pytest.mark.parametrize("seed", sorted(PINNED))
def test_the_options_of_a_pinned_run_are_understood(seed: str) -> None:
    """The options are of an earlier commit, so they may lack newer fields. All fields that they have keep their values."""
    given = PINNED[seed]
    options = json.loads(RunOptions.from_json(json.dumps(given)).to_json())
    assert {name: options[name] for name in given if name not in ("shape", "weather")} == {
        name: value for name, value in given.items() if name not in ("shape", "weather")
    }
    for part in ("shape", "weather"):
        assert given[part].items() <= options[part].items()
