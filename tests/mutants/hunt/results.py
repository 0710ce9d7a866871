"""The last result of each mutant in a hunt, in `results.tsv` and on the page docs/simulation-findings.md."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from tests.mutants.bugs import BY_NAME, MUTANTS
from tests.mutants.hunt.book import ROOT, Book
from tests.mutants.hunt.hunt import steps_of
from tests.mutants.hunt.steps import AIMED, CLUSTER
from tests.mutants.mutant import Mutant

FILE = Path(__file__).parent.parent / "results.tsv"
PAGE = ROOT / "docs" / "simulation-findings.md"
BEGIN = "<!-- mutants: python -m tests.mutants --table -->\n"
END = "<!-- end of mutants -->\n"
NOBODY, UNTRIED = "nobody", "not found yet"
CAMPAIGN, ALONE = "campaign", "parts alone"
CLUSTERS_MIN = 12
"""With fewer clusters, the table says that the mutant was hardly looked for."""


@attrs.frozen
class Result:
    """A mutant's last result: which driver found it, at which step, after how many steps and CPU seconds."""

    name: str
    found_by: str
    at: str = ""
    tries: str = ""
    cpu_seconds: str = ""
    remark: str = ""
    """The failure that showed the mutant, or how often the place of a missed mutant ran."""

    @property
    def is_campaigns(self) -> bool:
        """True if a campaign finds the mutant, in clusters or in parts alone."""
        return self.found_by in (CAMPAIGN, ALONE)


def read(path: Path = FILE) -> dict[str, Result]:
    """Return the results of all mutants. A mutant without a result has `UNTRIED`."""
    results = {mutant.name: Result(mutant.name, UNTRIED) for mutant in MUTANTS}
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.reader(file, delimiter="\t"):
                if row and row[0] in results:
                    results[row[0]] = Result(*row)
    return results


def write(results: Mapping[str, Result], path: Path = FILE) -> None:
    """Write the results, in the order of the mutants."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows(attrs.astuple(results[mutant.name]) for mutant in MUTANTS)


def merged(before: Mapping[str, Result], book: Book) -> dict[str, Result]:
    """Return the results, in which those of a book replace older ones. An older finding stays while the hunt for its
    mutant has not ended.
    """
    return {name: _newer(name, result, book) for name, result in before.items()}


def _newer(name: str, before: Result, book: Book) -> Result:
    result = _of(name, book)
    if result is None:
        return before
    if before.found_by != UNTRIED and not result.is_campaigns:
        was_aimed_at = any(step.kind == AIMED for step in book.of_mutant.get(name, {}))
        if result.found_by == UNTRIED or (result.found_by == NOBODY and not was_aimed_at):
            return before
    return result


def _of(name: str, book: Book) -> Result | None:
    outcomes = book.of_mutant.get(name, {})
    steps = steps_of(name, book)
    found = book.found(name)
    tries = str(sum(each.seeds for each in outcomes.values()))
    cpu_seconds = f"{sum(each.cpu_seconds for each in outcomes.values()):.0f}"
    if found is not None:
        kind = found.step.kind
        by = BY_NAME[name].driver if kind == AIMED else CAMPAIGN if kind == CLUSTER else ALONE
        return Result(name, by, str(found.step), tries, cpu_seconds, _short(found.verdict))
    ran = sum(book.sound[step].reached[name] for step in outcomes if step in book.sound)
    remark = f"its place ran {ran} times, and no check failed"
    if not steps:
        remark = f"its place never runs in {len(book.sound)} steps"
    clusters = sum(step.kind == CLUSTER for step in book.sound)
    if clusters < CLUSTERS_MIN or any(step not in outcomes for step in steps):
        return Result(name, UNTRIED, "", tries, cpu_seconds, remark) if outcomes else None
    return Result(name, NOBODY, "", tries, cpu_seconds, remark)


def _short(verdict: str) -> str:
    return re.sub(r"\s+", " ", verdict)[:90]


def is_unexplained(result: Result) -> bool:
    """True if campaigns miss a mutant and it has no reason for that."""
    mutant = BY_NAME[result.name]
    if result.is_campaigns or mutant.unseen:
        return False
    return result.found_by in (NOBODY, UNTRIED) or not mutant.aimed_only


def page(results: Mapping[str, Result]) -> str:
    """Return the counts, the lists of missed mutants, and the table, in Markdown."""
    listed = [results[mutant.name] for mutant in MUTANTS]
    aimed = [each for each in listed if not each.is_campaigns and each.found_by not in (NOBODY, UNTRIED)]
    lines = [
        "",
        *_counts(listed),
        "",
        "Found by aimed drivers alone, and why:",
        "",
        *(f"* `{each.name}`: {BY_NAME[each.name].aimed_only or 'no reason is known yet'}" for each in aimed),
        "",
        "Found by nobody, and why:",
        "",
        *(
            f"* `{each.name}`: {BY_NAME[each.name].unseen or each.remark or 'no reason is known yet'}"
            for each in listed
            if each.found_by == NOBODY
        ),
        "",
        "| mutant | area | what is broken | found by | at | tries | CPU s |",
        "| --- | --- | --- | --- | --- | ---: | ---: |",
        *(_row(BY_NAME[each.name], each) for each in listed),
        "",
    ]
    return "\n".join(lines)


def _counts(listed: Sequence[Result]) -> Iterator[str]:
    yield "| | all | campaign | aimed driver only | nobody | not found yet |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for title, is_blind in (("by authors of checkers", False), ("by somebody who had read no checker", True)):
        some = [each for each in listed if BY_NAME[each.name].is_blind == is_blind]
        kinds = Counter(
            "campaign"
            if each.is_campaigns
            else each.found_by
            if each.found_by in (NOBODY, UNTRIED)
            else "aimed"
            for each in some
        )
        counts = (kinds["campaign"], kinds["aimed"], kinds[NOBODY], kinds[UNTRIED])
        yield f"| {title} | {len(some)} | " + " | ".join(map(str, counts)) + " |"


def _row(mutant: Mutant, result: Result) -> str:
    cells = (
        mutant.name,
        mutant.area,
        mutant.history,
        result.found_by,
        result.at,
        result.tries,
        result.cpu_seconds,
    )
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def write_page(results: Mapping[str, Result], path: Path = PAGE) -> None:
    """Write the results into the page, between its two marks."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(before + BEGIN + page(results) + END + after)
