"""Options that reached something new are drawn more often: which ones a campaign adds to what a seed has drawn. PURE.

An option is a word: "trouble links", "workload group" or "duty moves". The added options are recorded beside the
outcome, so that the run can be made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import attrs

from sim.machine.guards import CLIENTS_LOG_IN
from sim.options import GUARDED_DUTIES, RunOptions

GUIDED_PROBABILITY = 0.25
ADDED_MAX = 2
_NEEDS_MORE = ("trouble upgrade",)
"""Options that do nothing without another one."""

__all__ = ["added_for", "options_named", "with_added"]


def options_named(options: RunOptions) -> tuple[str, ...]:
    """List the words of all options that a run has."""
    return (
        *(f"trouble {kind}" for kind in dict.fromkeys(options.storm.kinds)),
        *(f"workload {name}" for name in options.workloads),
        *(f"duty {name}" for name in options.duties),
    )


def added_for(seed: int, options: RunOptions, news: Mapping[str, int]) -> tuple[str, ...]:
    """Choose options to add to those of a seed; `news` has how much new code each option has reached."""
    random = Random(f"{seed}/guided")
    if random.random() >= GUIDED_PROBABILITY or options.profile != "default":
        return ()
    has = options_named(options)
    able = [name for name in sorted(news) if news[name] and name not in (*has, *_NEEDS_MORE)]
    if not able:
        return ()
    drawn = random.choices(able, [news[name] for name in able], k=random.randint(1, ADDED_MAX))
    return tuple(dict.fromkeys(drawn))


def with_added(options: RunOptions, added: Sequence[str]) -> RunOptions:
    """Return the options with some more of these words."""
    for name in added:
        kind, _, word = name.partition(" ")
        match kind:
            case "trouble":
                storm = attrs.evolve(options.storm, kinds=(*options.storm.kinds, word))
                options = attrs.evolve(options, storm=storm)
            case "workload":
                options = attrs.evolve(options, workloads=(*options.workloads, word))
            case "duty":
                shape = options.shape
                if word in GUARDED_DUTIES and not shape.guarded:
                    shape = attrs.evolve(shape, guarded=CLIENTS_LOG_IN)
                options = attrs.evolve(options, shape=shape, duties=(*options.duties, word))
    return options
