"""The progress of a campaign, as a part of its report and as lines for the terminal. PURE, except that this module
reads the sources to count their lines.

The progress covers seeds, virtual time, records, faults by kind, named states, coverage, the answers of nodes, and
news since the previous campaign.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from sim.campaign.guide import Guide, everything
from sim.campaign.results import Outcome, Results
from sim.census.tally import Tally, report_of, screen_of
from sim.machine.answer_counts import ANSWERS, AnswerCounts, never_seen

FILES_NAMED_MAX = 15
NAMES_ON_SCREEN_MAX = 12

__all__ = ["Standing", "page", "screen"]


@attrs.define
class Standing:
    """Totals of a campaign at one moment."""

    seeds: int
    virtual_seconds: float
    records: int
    failures: tuple[str, ...]
    faults: dict[str, int]
    answers: AnswerCounts
    lines: dict[str, int]
    """How many lines of each file were executed."""
    branches: dict[str, int]
    points: dict[str, int]
    covered_runs: int
    tally: Tally = attrs.Factory(Tally)
    """Which named states were reached, and how often."""

    @classmethod
    def of(cls, results: Results, guide: Guide) -> Standing:
        """Compute the totals of all results so far."""
        faults: dict[str, int] = {}
        answers = AnswerCounts()
        for outcome in results.outcomes.values():
            answers.merge(outcome.answers, outcome.served)
            for name, times in outcome.faults.items():
                faults[name] = faults.get(name, 0) + times
        outcomes = results.outcomes.values()
        coverage = guide.coverage
        return cls(
            len(results.outcomes),
            sum(outcome.virtual_seconds for outcome in outcomes),
            sum(outcome.statistics.get("acknowledged", 0) for outcome in outcomes),
            tuple(results.failures()),
            faults,
            answers,
            {file: len(lines) for file, lines in coverage.lines.items()},
            {file: len(branches) for file, branches in coverage.branches.items()},
            dict(coverage.points),
            guide.runs,
            Tally.of(outcomes),
        )

    def seen(self) -> dict[str, None]:
        """List each combination of API, version and error code that nodes have answered, such as "Fetch 4 NONE"."""
        return {
            f"{key} {code}": None
            for key, codes in self.answers.counts.items()
            for code in codes
            if code != ANSWERS
        }


def page(now: Standing, before: Standing) -> str:
    """Write this part of the report, in Markdown."""
    lines = ["", "## What befell the clusters", "", "| fault | times |", "| --- | ---: |"]
    lines += [f"| {name} | {times} |" for name, times in sorted(now.faults.items())]
    lines += ["", "## Named states", "", *report_of(now.tally)]
    lines += ["", "## Coverage", "", *_coverage(now)]
    lines += ["", "## What nodes answered", "", *_answers(now)]
    lines += ["", "## New since the campaign before", ""]
    lines += [f"* {each}" for each in news(now, before)] or ["Nothing."]
    return "\n".join(lines) + "\n"


def screen(now: Standing, before: Standing, session: Sequence[Outcome]) -> list[str]:
    """Format the lines for the terminal at the end of a session."""
    seconds = sum(outcome.virtual_seconds for outcome in session)
    records = sum(outcome.statistics.get("acknowledged", 0) for outcome in session)
    failed = sum(outcome.verdict != "ok" for outcome in session)
    often = sorted(now.faults.items(), key=lambda item: (-item[1], item[0]))
    missing = never_seen(now.answers)
    return [
        f"seeds:    {len(session)} now, {failed} of them failed; {now.seeds} in all",
        f"virtual:  {seconds / 3600:.2f} h now, {now.virtual_seconds / 3600:.2f} h in all",
        f"parts:    {sum(outcome.schedules for outcome in session)} schedules of parts alone now",
        f"records:  {records} acknowledged now, {now.records} in all",
        "faults:   " + _some(f"{name} {times}" for name, times in often),
        f"coverage: {sum(now.lines.values())} lines and {sum(now.branches.values())} branches "
        f"in {now.covered_runs} runs; {len(now.points)} buggify points fired",
        *screen_of(now.tally),
        f"answers:  {len(now.answers.counts)} versions of APIs, {len(now.seen())} with their error codes",
        "unseen:   " + (_some(f"{key} {_ranges(each)}" for key, each in missing.items()) or "nothing"),
        *(f"new:      {each}" for each in news(now, before)),
    ]


def news(now: Standing, before: Standing) -> list[str]:
    """List what was reached since `before` for the first time."""
    found = []
    failures = [each for each in now.failures if each not in before.failures]
    if failures:
        found.append(f"{len(failures)} ways to fail: " + _some(failures))
    faults = [name for name in sorted(now.faults) if name not in before.faults]
    if faults:
        found.append(f"{len(faults)} faults: " + _some(faults))
    known = before.seen()
    answers = [each for each in now.seen() if each not in known]
    if answers:
        found.append(f"{len(answers)} answers: " + _some(sorted(answers)))
    states = sorted(name for name in now.tally.by_either if name not in before.tally.by_either)
    if states:
        found.append(f"{len(states)} named states: " + _some(states))
    lines = sum(now.lines.values()) - sum(before.lines.values())
    branches = sum(now.branches.values()) - sum(before.branches.values())
    if lines or branches:
        found.append(f"{lines} lines and {branches} branches")
    points = [point for point in now.points if point not in before.points]
    if points:
        found.append(f"{len(points)} buggify points: " + _some(points))
    return found


def _coverage(now: Standing) -> list[str]:
    if not now.covered_runs:
        return ["No run has recorded it yet."]
    rows: list[tuple[int, str]] = []
    packages: dict[str, list[int]] = {}
    for file, (lines, branches) in everything().items():
        package = packages.setdefault(file.rpartition("/")[0], [0, 0, 0, 0])
        executed = min(now.lines.get(file, 0), len(lines))
        for place, count in enumerate((executed, len(lines), now.branches.get(file, 0), len(branches))):
            package[place] += count
        rows.append((len(lines) - executed, f"| {file} | {executed} | {len(lines)} |"))
    fired = ", ".join(f"{point} {times}" for point, times in sorted(now.points.items()))
    return [
        f"{now.covered_runs} runs recorded it. Buggify points that fired: {fired or 'none'}.",
        "",
        "| folder | lines executed | of | branches taken | of |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(f"| {name} | " + " | ".join(map(str, counts)) + " |" for name, counts in sorted(packages.items())),
        "",
        "| files with the most lines never reached | lines executed | of |",
        "| --- | ---: | ---: |",
        *(row for _, row in sorted(rows, key=lambda each: (-each[0], each[1]))[:FILES_NAMED_MAX]),
    ]


def _answers(now: Standing) -> list[str]:
    by_api: dict[str, dict[str, int]] = {}
    versions: dict[str, list[int]] = {}
    for key, codes in now.answers.counts.items():
        api, _, version = key.rpartition(" ")
        versions.setdefault(api, []).append(int(version))
        there = by_api.setdefault(api, {})
        for code, times in codes.items():
            there[code] = there.get(code, 0) + times
    missing = never_seen(now.answers)
    lines = [
        "Error codes are counted at each place of an answer that has one.",
        "",
        "| API | answers | versions | never asked | error codes |",
        "| --- | ---: | --- | --- | --- |",
    ]
    for api in sorted(now.answers.served):
        codes = by_api.get(api, {})
        told = ", ".join(f"{code} {times}" for code, times in sorted(codes.items()) if code != ANSWERS)
        lines.append(
            f"| {api} | {codes.get(ANSWERS, 0)} | {_ranges(sorted(versions.get(api, [])))} "
            f"| {_ranges(missing.get(api, []))} | {told} |"
        )
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges, such as `0-3, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - NAMES_ON_SCREEN_MAX
    return ", ".join(listed[:NAMES_ON_SCREEN_MAX]) + (f" and {more} more" if more > 0 else "")
