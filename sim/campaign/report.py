"""The report of a campaign, in Markdown. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from sim.campaign.guidance import with_added
from sim.campaign.results import Outcome, Results, Shrunk
from sim.options import RunOptions
from sim.replay import replay_command

SEEDS_NAMED_MAX = 10
MESSAGE_LINES_MAX = 25

__all__ = ["report"]


def report(
    results: Results, commit: str, workers: int, real_seconds: float, session: Sequence[Outcome]
) -> str:
    """Write the report on all seeds so far. `session` has the outcomes of the last session, which took `real_seconds`."""
    outcomes = list(results.outcomes.values())
    failures = results.failures()
    failed = sum(map(len, failures.values()))
    virtual = sum(outcome.virtual_seconds for outcome in outcomes)
    lines = [
        "# A campaign of the simulator",
        "",
        f"{len(outcomes)} seeds, {failed} of them failed"
        + (f", in {len(failures)} ways" if len(failures) > 1 else "")
        + f"; {_duration(virtual)} of virtual time.",
        "",
        *_speed(commit, workers, real_seconds, session),
        *_coverage(outcomes),
        *_totals(outcomes),
    ]
    if failures:
        lines += ["## Failures", ""]
    for signature, group in failures.items():
        lines += _failure(signature, group, results.shrunk.get(signature))
    return "\n".join(lines).rstrip() + "\n"


def _speed(commit: str, workers: int, real_seconds: float, session: Sequence[Outcome]) -> list[str]:
    if not session or real_seconds <= 0:
        return []
    virtual = sum(outcome.virtual_seconds for outcome in session)
    busy = sum(outcome.real_seconds for outcome in session) or real_seconds
    return [
        f"The last session ran {len(session)} seeds of commit {commit} with {workers} workers in {_duration(real_seconds)}: "
        f"{len(session) / real_seconds * 3600:.0f} seeds an hour, {virtual / busy:.1f} virtual seconds per real second "
        "of a worker.",
        "",
    ]


def _coverage(outcomes: Sequence[Outcome]) -> list[str]:
    """Write a table of how many runs had each trouble, workload and operator duty, and how many of them failed."""
    rows: dict[str, list[int]] = {}
    for outcome in outcomes:
        for name in (
            *(f"trouble: {kind}" for kind in outcome.kinds),
            *(f"workload: {each}" for each in outcome.workloads),
            *(f"operator: {each}" for each in outcome.duties),
        ):
            row = rows.setdefault(name, [0, 0])
            row[0] += 1
            row[1] += outcome.verdict != "ok"
    if not rows:
        return []
    table = [f"| {name} | {runs} | {failed or ''} |" for name, (runs, failed) in sorted(rows.items())]
    return ["| what runs had | runs | failed |", "| --- | ---: | ---: |", *table, ""]


def _totals(outcomes: Sequence[Outcome]) -> list[str]:
    totals: dict[str, int] = {}
    for outcome in outcomes:
        for name, value in outcome.statistics.items():
            totals[name] = totals.get(name, 0) + value
    if not totals:
        return []
    return ["In all: " + ", ".join(f"{name} {value}" for name, value in sorted(totals.items())) + ".", ""]


def _failure(signature: str, group: Sequence[Outcome], shrunk: Shrunk | None) -> list[str]:
    first = group[0]
    seeds = ", ".join(str(outcome.seed) for outcome in group[:SEEDS_NAMED_MAX])
    more = ", ..." if len(group) > SEEDS_NAMED_MAX else ""
    lines = [
        f"### {signature}",
        "",
        f"{len(group)} of the seeds: {seeds}{more} (commit {first.commit})",
        "",
        "```text",
        *first.message.rstrip().splitlines()[-MESSAGE_LINES_MAX:],
        "```",
        "",
    ]
    options = with_added(RunOptions.draw(first.seed, first.profile), first.added)
    command = first.alone or replay_command(first.seed, options)
    if shrunk is None:
        return [*lines, "```sh", command, "```", ""]
    lines += ["```sh", shrunk.command, "```", ""]
    taken = ", ".join(shrunk.taken_away) or "nothing"
    lines += [
        f"Made smaller in {shrunk.runs} runs; taken away: {taken}. "
        + ("Another process with another hash seed gave the same digest. " if shrunk.replays else "")
        + ("" if shrunk.replays else "**Another process gave another digest: this run does not replay.** ")
        + f"Timeline: [{shrunk.timeline}]({shrunk.timeline}).",
        "",
    ]
    return lines


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
