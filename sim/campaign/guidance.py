"""Options that lead to rare states are drawn more often: which ones a campaign adds to what a seed has drawn. PURE.

An option is a word: "trouble links", "workload group" or "duty moves". The added options are recorded beside the
outcome, so that the run can be made again.

Two things weigh alike. One run in twenty shows how many new lines and branches its options have reached. Every run shows
which named states of the product (`sim/census`) it has reached. A state that few runs reach counts for more, and states
that one run in five reaches count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

import attrs

from sim.campaign.results import Outcome
from sim.machine.guards import CLIENTS_LOG_IN
from sim.options import GUARDED_DUTIES, RunOptions

GUIDED_PROBABILITY = 0.25
ADDED_MAX = 2
_NEEDS_MORE = ("trouble upgrade",)
"""Options that do nothing without another one."""

RARE_SHARE = 0.2
"""A state is rare while a smaller share of the runs than this has reached it."""

__all__ = ["RareStates", "added_for", "options_named", "with_added"]


def options_named(options: RunOptions) -> tuple[str, ...]:
    """List the words of all options that a run has."""
    return (
        *(f"trouble {kind}" for kind in dict.fromkeys(options.storm.kinds)),
        *(f"workload {name}" for name in options.workloads),
        *(f"duty {name}" for name in options.duties),
    )


@attrs.define
class RareStates:
    """The named states that runs with each option have reached."""

    runs: int = 0
    reached: dict[str, int] = attrs.Factory(dict)
    """The runs that have reached each state."""
    runs_with: dict[str, int] = attrs.Factory(dict)
    """The runs that had each option."""
    reached_with: dict[str, dict[str, int]] = attrs.Factory(dict)
    """By option, then by state: the runs that had the one and have reached the other."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> RareStates:
        """Count these runs."""
        found = cls()
        for outcome in outcomes:
            found.add(outcome)
        return found

    def add(self, outcome: Outcome) -> None:
        """Count a run. Parts alone have no options, so their states are left out."""
        self.runs += 1
        for name in outcome.states:
            self.reached[name] = self.reached.get(name, 0) + 1
        for option in _options_of(outcome):
            self.runs_with[option] = self.runs_with.get(option, 0) + 1
            counts = self.reached_with.setdefault(option, {})
            for name in outcome.states:
                counts[name] = counts.get(name, 0) + 1

    def weights(self) -> dict[str, float]:
        """Compute for each option how many rare states a run with it reaches; a state weighs 1 / its runs."""
        rare = {name: 1 / runs for name, runs in self.reached.items() if runs < RARE_SHARE * self.runs}
        return {
            option: sum(runs * rare.get(name, 0.0) for name, runs in counts.items()) / self.runs_with[option]
            for option, counts in self.reached_with.items()
        }


def _options_of(outcome: Outcome) -> tuple[str, ...]:
    """List the words of all options that a run had, as `options_named` does."""
    return (
        *(f"trouble {kind}" for kind in outcome.kinds),
        *(f"workload {name}" for name in outcome.workloads),
        *(f"duty {name}" for name in outcome.duties),
    )


def added_for(
    seed: int, options: RunOptions, news: Mapping[str, int], rare: Mapping[str, float]
) -> tuple[str, ...]:
    """Choose options to add to those of a seed.

    `news` has how much new code each option has reached, `rare` the weight of the rare states behind it.
    """
    random = Random(f"{seed}/guided")
    if random.random() >= GUIDED_PROBABILITY or options.profile != "default":
        return ()
    has = options_named(options)
    weights = _shares(news)
    for name, share in _shares(rare).items():
        weights[name] = weights.get(name, 0.0) + share
    able = [name for name in sorted(weights) if weights[name] and name not in (*has, *_NEEDS_MORE)]
    if not able:
        return ()
    drawn = random.choices(able, [weights[name] for name in able], k=random.randint(1, ADDED_MAX))
    return tuple(dict.fromkeys(drawn))


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Scale weights to a sum of 1."""
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()} if whole else {}


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
