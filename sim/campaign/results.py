"""The file of a campaign's results: JSON lines, one for each run and one for each minimised failure. PURE.

A line is written when its run has ended. So a campaign that is killed loses only the runs that have not ended. An
incomplete last line is ignored. If two lines have the same seed, the later line counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from sim.alone.parts import FailedSchedule, schedules_of
from sim.options import RunOptions
from sim.run import RunResult, signature_of

MESSAGE_CHARACTERS_MAX = 4000

__all__ = ["Outcome", "Results", "Shrunk", "line_of"]


@attrs.frozen
class Outcome:
    """The result of one run.

    `commit` is the commit of the code that was run. Only failures have a `message`.
    """

    seed: int
    profile: str
    commit: str
    verdict: str
    signature: str
    message: str
    digest: str
    virtual_seconds: float
    real_seconds: float
    kinds: tuple[str, ...]
    """The kinds of trouble in the storm, each once."""
    workloads: tuple[str, ...]
    statistics: Mapping[str, int]
    added: tuple[str, ...] = ()
    """Options that the campaign added to the options drawn from the seed (`sim.campaign.guidance`)."""
    duties: tuple[str, ...] = ()
    covered: bool = False
    """True if the run's coverage was recorded. Such a run is slow, so the report does not count it in the speed."""
    faults: Mapping[str, int] = attrs.Factory(dict)
    """How often each kind of fault was inflicted on the cluster."""
    answers: Mapping[str, Mapping[str, int]] = attrs.Factory(dict)
    served: Mapping[str, Sequence[int]] = attrs.Factory(dict)
    """`answers` has counts of the nodes' answers, and `served` the API versions that nodes offer
    (`sim.machine.answer_counts`).
    """
    schedules: int = 0
    """How many schedules of single parts (`sim.alone`) were run after the cluster."""
    alone: str = ""
    """The command that repeats the failed schedule of a part; empty if none failed."""
    states: Mapping[str, int] = attrs.Factory(dict)
    """How often the cluster reached each named state of the product."""
    alone_states: Mapping[str, int] = attrs.Factory(dict)
    """How often the schedules of single parts reached each named state."""

    @classmethod
    def of(cls, result: RunResult, commit: str) -> Outcome:
        """Make an outcome from a run's result: the part of the result that the results file keeps."""
        options = result.options
        return cls(
            result.seed,
            options.profile,
            commit,
            result.verdict,
            result.signature,
            result.message[-MESSAGE_CHARACTERS_MAX:],
            result.digest,
            round(result.virtual_seconds, 3),
            round(result.real_seconds, 3),
            tuple(dict.fromkeys(options.storm.kinds)),
            options.workloads,
            dict(result.statistics),
            (),
            options.duties,
            False,
            dict(result.faults),
            result.answers.counts,
            result.answers.served,
            states=result.states,
        )

    def with_schedules(self, failed: FailedSchedule | None, states: Mapping[str, int]) -> Outcome:
        """Return the outcome with the results of the seed's schedules of single parts. `failed` is the first failed
        schedule; None if all passed.
        """
        outcome = attrs.evolve(self, schedules=sum(1 for _ in schedules_of(self.seed)), alone_states=states)
        if failed is None:
            return outcome
        return attrs.evolve(
            outcome,
            verdict=failed.verdict,
            signature=signature_of(f"{failed.verdict}: {failed.part} alone: {failed.message}"),
            message=failed.message[-MESSAGE_CHARACTERS_MAX:],
            alone=failed.command,
        )

    @classmethod
    def lost(cls, seed: int, options: RunOptions, commit: str, why: str, real_seconds: float) -> Outcome:
        """Make the outcome of a run whose process died, or was killed because the run did not end."""
        return cls(
            seed,
            options.profile,
            commit,
            "crash",
            f"crash: {why}",
            why,
            "",
            0.0,
            round(real_seconds, 3),
            tuple(dict.fromkeys(options.storm.kinds)),
            options.workloads,
            {},
        )


@attrs.frozen
class Shrunk:
    """The first failure of a group, minimised. `replays` is True if another process gave the same digest."""

    seed: int
    signature: str
    options: str
    """The options as JSON."""
    taken_away: tuple[str, ...]
    runs: int
    replays: bool
    command: str
    timeline: str
    """The file name of the timeline."""


@attrs.define
class Results:
    """All results of a campaign so far."""

    outcomes: dict[int, Outcome] = attrs.Factory(dict)
    shrunk: dict[str, Shrunk] = attrs.Factory(dict)
    """Minimised failures by their signature."""

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Results:
        """Read lines that `line_of` wrote. Raises `ValueError` for any other line, except an incomplete last one."""
        results = cls()
        pending: ValueError | None = None
        for line in lines:
            if pending is not None:
                raise pending
            try:
                results.add(_parse(line))
            except (ValueError, TypeError, KeyError) as error:
                pending = ValueError(f"not a result of a campaign: {line[:80]!r}: {error}")
        return results

    def add(self, found: Outcome | Shrunk) -> None:
        """Add a result. It replaces an earlier one of the same seed or failure group."""
        if isinstance(found, Outcome):
            self.outcomes.pop(found.seed, None)
            self.outcomes[found.seed] = found
        else:
            self.shrunk[found.signature] = found

    def failures(self) -> dict[str, list[Outcome]]:
        """Collect the failed runs by signature, the largest group first."""
        groups: dict[str, list[Outcome]] = {}
        for outcome in sorted(self.outcomes.values(), key=lambda each: each.seed):
            if outcome.verdict != "ok":
                groups.setdefault(outcome.signature, []).append(outcome)
        return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))

    def next_seeds(self, first: int, commit: str) -> Iterator[int]:
        """Yield the seeds to run, without end. The seeds that failed with another commit come first. After them come
        all seeds from `first` on that have no result yet.
        """
        again = [
            outcome.seed
            for outcome in self.outcomes.values()
            if outcome.verdict != "ok" and outcome.commit != commit
        ]
        yield from sorted(again)
        done = frozenset(self.outcomes)
        seed = first
        while True:
            if seed not in done:
                yield seed
            seed += 1


def line_of(found: Outcome | Shrunk) -> str:
    """Encode a result as a line of the file, including the newline."""
    kind = "run" if isinstance(found, Outcome) else "shrunk"
    return json.dumps({"kind": kind, **attrs.asdict(found)}) + "\n"


def _parse(line: str) -> Outcome | Shrunk:
    given: dict[str, Any] = json.loads(line)
    kind = given.pop("kind")
    if kind == "run":
        lists = ("kinds", "workloads", "added", "duties")
        return Outcome(**given | {name: tuple(given[name]) for name in lists if name in given})
    if kind == "shrunk":
        return Shrunk(**given | {"taken_away": tuple(given["taken_away"])})
    raise ValueError(f"unknown kind {kind!r}")
