"""Guided choice of options: a campaign adds options that have led to rare states or new code. PURE.

An option is named by two words, for example "trouble links", "workload group" or "duty moves". The added options are
recorded with the outcome, so that the run can be repeated.

Two measures of an option have equal weight. The first is how many new lines and branches runs with the option have
reached; it is measured in one run in twenty. The second is which named states of the product (`sim/census`) runs with
the option have reached; it is measured in every run. The fewer runs reach a state, the more the state counts. A state
that one run in five reaches does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

import attrs

from sim.campaign.results import Outcome
from sim.machine.guards import CLIENTS_LOG_IN
from sim.options import GUARDED_DUTIES, WORKLOAD_SETTINGS, RunOptions

GUIDED_PROBABILITY = 0.25
ADDED_MAX = 2
_NEEDS_MORE = ("trouble upgrade",)
"""Options that have no effect without another option."""

RARE_SHARE = 0.2
"""A state is rare if fewer than this share of the runs have reached it."""

__all__ = ["RareStates", "added_for", "options_named", "with_added"]


def options_named(options: RunOptions) -> tuple[str, ...]:
    """List the names of all options that a run has, such as "workload group"."""
    return (
        *(f"trouble {kind}" for kind in dict.fromkeys(options.storm.kinds)),
        *(f"workload {name}" for name in options.workloads),
        *(f"duty {name}" for name in options.duties),
    )


@attrs.define
class RareStates:
    """Counts of runs: for each option and each named state, how many runs with the option have reached the state."""

    runs: int = 0
    reached: dict[str, int] = attrs.Factory(dict)
    """The number of runs that reached each state."""
    runs_with: dict[str, int] = attrs.Factory(dict)
    """The number of runs that had each option."""
    reached_with: dict[str, dict[str, int]] = attrs.Factory(dict)
    """For each option, the number of runs that had the option and reached each state."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> RareStates:
        """Count the given runs."""
        found = cls()
        for outcome in outcomes:
            found.add(outcome)
        return found

    def add(self, outcome: Outcome) -> None:
        """Count a run. States that only schedules of single parts have reached are left out, since such schedules
        have no options.
        """
        self.runs += 1
        for name in outcome.states:
            self.reached[name] = self.reached.get(name, 0) + 1
        for option in _options_of(outcome):
            self.runs_with[option] = self.runs_with.get(option, 0) + 1
            counts = self.reached_with.setdefault(option, {})
            for name in outcome.states:
                counts[name] = counts.get(name, 0) + 1

    def weights(self) -> dict[str, float]:
        """Compute the weight of each option: how many rare states a run with the option reaches on average. A state
        that n runs have reached counts as 1/n.
        """
        rare = {name: 1 / runs for name, runs in self.reached.items() if runs < RARE_SHARE * self.runs}
        return {
            option: sum(runs * rare.get(name, 0.0) for name, runs in counts.items()) / self.runs_with[option]
            for option, counts in self.reached_with.items()
        }


def _options_of(outcome: Outcome) -> tuple[str, ...]:
    """List the names of all options that a run had, in the words of `options_named`."""
    return (
        *(f"trouble {kind}" for kind in outcome.kinds),
        *(f"workload {name}" for name in outcome.workloads),
        *(f"duty {name}" for name in outcome.duties),
    )


def added_for(
    seed: int, options: RunOptions, news: Mapping[str, int], rare: Mapping[str, float]
) -> tuple[str, ...]:
    """Choose at most `ADDED_MAX` options to add to the options that a seed draws. For most seeds choose none.

    `news` has for each option how much new code the runs with it have reached. `rare` has for each option the weight
    of the rare states that these runs have reached.
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
    """Scale the weights so that their sum is 1. Returns an empty dict if all are 0."""
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()} if whole else {}


def with_added(options: RunOptions, added: Sequence[str]) -> RunOptions:
    """Return the options with these named options added."""
    for name in added:
        kind, _, word = name.partition(" ")
        match kind:
            case "trouble":
                storm = attrs.evolve(options.storm, kinds=(*options.storm.kinds, word))
                options = attrs.evolve(options, storm=storm)
            case "workload":
                # Without its settings, a workload waits for Kafka's timeouts, which are longer than its checks permit.
                needed = {key: values[0] for key, values in WORKLOAD_SETTINGS.get(word, {}).items()}
                shape = attrs.evolve(options.shape, settings={**needed, **options.shape.settings})
                options = attrs.evolve(options, shape=shape, workloads=(*options.workloads, word))
            case "duty":
                shape = options.shape
                if word in GUARDED_DUTIES and not shape.guarded:
                    shape = attrs.evolve(shape, guarded=CLIENTS_LOG_IN)
                options = attrs.evolve(options, shape=shape, duties=(*options.duties, word))
    return options
