"""The shell command that repeats a run, with those options that differ from the options drawn from the seed. PURE.

`options_with(RunOptions.draw(seed, profile), given)` returns the options for the command line's `--options`.
`difference` finds the smallest `given` for the options of a run.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from sim.options import RunOptions

_SECTIONS = ("shape", "storm", "weather")
"""Options that consist of parts. Each part may be given separately."""

__all__ = ["difference", "options_with", "replay_command"]


def options_with(options: RunOptions, given: Mapping[str, Any]) -> RunOptions:
    """Replace options by the given values. Raises `ValueError` for an unknown option."""
    whole: dict[str, Any] = json.loads(options.to_json())
    for name, value in given.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            whole[name] = {**whole[name], **value}
        else:
            whole[name] = value
    return RunOptions.from_json(json.dumps(whole))


def difference(base: RunOptions, options: RunOptions) -> dict[str, Any]:
    """Return the values that turn `base` into `options`."""
    before: dict[str, Any] = json.loads(base.to_json())
    after: dict[str, Any] = json.loads(options.to_json())
    found: dict[str, Any] = {}
    for name, value in after.items():
        if name in _SECTIONS:
            parts = {part: each for part, each in value.items() if before[name].get(part) != each}
            if parts:
                found[name] = parts
        elif before.get(name) != value:
            found[name] = value
    return found


def replay_command(seed: int, options: RunOptions) -> str:
    """Return a shell command that repeats this run."""
    words = ["python", "-m", "sim", "--seed", str(seed)]
    if options.profile != "default":
        words += ["--profile", options.profile]
    drawn = RunOptions.draw(seed, options.profile)
    given = difference(drawn, options)
    nodes = given.get("shape", {}).get("nodes")
    # Many drawn options depend on the number of nodes, so it is an argument of its own.
    if nodes is not None:
        words += ["--nodes", str(nodes)]
        given = difference(RunOptions.draw(seed, options.profile, nodes=nodes), options)
    if given:
        words += ["--options", json.dumps(given, sort_keys=True)]
    return shlex.join(words)
