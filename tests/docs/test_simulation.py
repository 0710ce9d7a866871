"""docs/simulation.md and docs/simulation-findings.md: the example of a workload runs, and all names on the
pages exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim import __main__ as command
from tests.docs.markdown import ROOT, blocks
from tests.mutants.bugs import MUTANTS

PAGE = "docs/simulation.md"
FINDINGS = "docs/simulation-findings.md"
CALM = ["--profile", "calm", "--seconds", "2", "--options", '{"workloads": ["produce"]}']


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Write the example of the page into a file."""
    (example,) = blocks(PAGE, "python")
    file = tmp_path / "ledger.py"
    file.write_text(example.code)
    return file


def test_the_example_runs_as_printed(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workload runs as it is printed on the page, and its clients take part in the run."""
    assert command.main(["--seed", "1", *CALM, "--workload", str(ledger), "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "verdict: ok" in printed
    assert " bookkeeper send " in printed


def test_what_the_example_finds_is_a_verdict(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the workload's check fails, the run fails, and the command that replays it names the file."""
    ledger.write_text(
        ledger.read_text()
        .replace('entry = b"entry %d" % number', 'entry = b""')
        .replace("self.promised[where.offset] = entry", 'self.promised[where.offset] = b"another"')
    )
    assert command.main(["--seed", "1", *CALM, "--workload", str(ledger)]) == 1
    printed = capsys.readouterr().out
    assert "safety: b'another' was promised at 0" in printed
    assert f"--workload {ledger}" in printed


def test_a_file_without_a_workload_is_refused(tmp_path: Path) -> None:
    """A file without a workload is refused with exit status 64, like any other wrong usage."""
    file = tmp_path / "empty.py"
    file.write_text("workload = 7\n")
    with pytest.raises(SystemExit) as ended:
        command.main(["--seed", "1", "--workload", str(file)])
    assert ended.value.code == 64


def test_the_findings_have_every_mutant() -> None:
    """The page has a row for each mutant, in order, with its area and history. test_hunt.py checks the other
    columns."""
    table = (ROOT / FINDINGS).read_text().partition("| mutant |")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if re.match(r"\| [a-z]+-", line)]
    assert [tuple(row[:3]) for row in rows] == [
        (mutant.name, mutant.area, mutant.history) for mutant in MUTANTS
    ]


def test_a_known_mutant_that_campaigns_miss_has_its_reason() -> None:
    """Each known mutant that campaigns miss has a reason in the code, and the page gives that reason. Blind mutants are
    left out."""
    reasons = dict(re.findall(r"^\* `([a-z-]+)`: (.*)$", (ROOT / FINDINGS).read_text(), re.MULTILINE))
    for mutant in MUTANTS:
        if mutant.name in reasons and not mutant.is_blind:
            assert reasons[mutant.name] in (mutant.aimed_only, mutant.unseen), mutant.name


@pytest.mark.parametrize("page", [PAGE, FINDINGS])
def test_the_pages_name_only_files_that_are_there(page: str) -> None:
    """Each Python file that a page names exists. A name without a folder stands for a module somewhere in `sim`."""
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    modules = {path.name for path in (ROOT / "sim").rglob("*.py")}
    alone = set(re.findall(r"`(\w+\.py)`", text)) - {"ledger.py"}
    assert sorted(alone - modules) == []
