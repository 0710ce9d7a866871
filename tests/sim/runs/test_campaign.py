"""Campaigns: which results are stored, how failures are shrunk and reported, and that observing changes nothing."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import pytest

from sim import __main__ as command
from sim.campaign.command import Campaign
from sim.campaign.observing import observe
from sim.campaign.report import report
from sim.campaign.results import Outcome, Results, line_of
from sim.campaign.shrinking import shrink
from sim.campaign.workers import Worker
from sim.options import RunOptions
from sim.run import run

SHORT = attrs.evolve(RunOptions.draw(1, "calm"), workloads=("produce",), duties=(), delivery_seconds=60.0)
SHORT = attrs.evolve(SHORT, storm=attrs.evolve(SHORT.storm, seconds=1.0, power=False))

INTERRUPTIBLE = """
import signal, sys
from sim.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
"""The command as a program that reacts to SIGINT, even if the tests run in the background."""


def outcome(seed: int, verdict: str = "ok", commit: str = "abc") -> Outcome:
    """Make a run with this verdict."""
    result = attrs.evolve(
        Outcome.lost(seed, SHORT, commit, "a reason", 1.0), verdict=verdict, statistics={"records": 3}
    )
    return attrs.evolve(result, signature="" if verdict == "ok" else f"{verdict}: it")


def test_what_was_found_survives_the_end_of_the_process() -> None:
    """Stored results are read back. Of two lines for a seed the later counts, and a torn last line is ignored."""
    found = [outcome(1, "safety"), outcome(2), outcome(1)]
    lines = [line_of(each).rstrip("\n") for each in found]
    results = Results.parse([*lines, lines[0][:20]])
    assert list(results.outcomes.values()) == [found[1], found[2]]
    with pytest.raises(ValueError, match="not a result"):
        Results.parse([lines[0][:20], *lines])


def test_a_campaign_goes_on_where_it_stopped() -> None:
    """A campaign does not repeat seeds, except those that failed with other code, which come first."""
    results = Results()
    for each in (outcome(0), outcome(1, "safety", "old"), outcome(3, "crash"), outcome(4)):
        results.add(each)
    assert list(islice(results.next_seeds(0, "abc"), 4)) == [1, 2, 5, 6]


def test_shrinking_keeps_what_the_failure_needs_and_nothing_else() -> None:
    """Shrinking removes options one by one while the run still fails. What a failure needs is kept."""
    options = attrs.evolve(RunOptions.draw(3), workloads=("produce", "consume", "group"))
    options = attrs.evolve(options, storm=attrs.evolve(options.storm, kinds=("deaths", "links", "clocks")))

    def still_fails(each: RunOptions) -> bool:
        return "links" in each.storm.kinds and "group" in each.workloads

    small = shrink(options, still_fails, 200)
    assert small.options.storm.kinds == ("links",)
    assert small.options.workloads == ("produce", "group")
    assert {"storm -deaths", "storm -clocks", "workload -consume"} <= set(small.taken_away)
    assert shrink(options, lambda _: True, 3).runs == 3
    assert shrink(options, lambda _: False).options == options


def test_the_report_groups_failures_by_signature() -> None:
    """The report lists the largest group of failures first, each with its seeds and a replay command."""
    results = Results()
    for each in (outcome(1), outcome(2, "crash"), outcome(3, "safety"), outcome(5, "safety")):
        results.add(each)
    text = report(results, "abc", 2, 60.0, list(results.outcomes.values()))
    assert "4 seeds, 3 of them failed, in 2 ways" in text
    assert text.index("### safety: it") < text.index("### crash: it")
    assert "2 of the seeds: 3, 5 (commit abc)" in text
    assert "python -m sim --seed 3 --profile calm" in text


@pytest.fixture
def seeds_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that make every odd seed crash, by an unknown kind of storm.

    Schedules of single parts are left out, because they take ten times as long as these short runs. Only interrupted
    campaigns run them.
    """

    def options(_: Campaign, seed: int) -> RunOptions:
        kinds = ("no such trouble",) if seed % 2 else ()
        return attrs.evolve(SHORT, clients=3, storm=attrs.evolve(SHORT.storm, kinds=kinds))

    run_all = Worker.run

    def run_the_cluster(worker: Worker, *words: Any, parts: bool = False, **options: Any) -> Outcome:
        return run_all(worker, *words, **options)

    monkeypatch.setattr(Campaign, "_options", options)
    monkeypatch.setattr(Worker, "run", run_the_cluster)


@pytest.mark.usefixtures("seeds_that_fail")
def test_a_campaign_finds_groups_shrinks_and_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two sessions of a campaign, failures form one group, which is shrunk, replayed, and shown with a timeline."""
    arguments = ["--campaign", "--profile", "calm", "--workers", "1", "--tries", "2", "--out", str(tmp_path)]
    assert command.main([*arguments, "--seeds", "2"]) == 3
    assert command.main([*arguments, "--seeds", "1"]) == 0
    results = Results.parse((tmp_path / "results.jsonl").read_text().splitlines())
    assert {seed: each.verdict for seed, each in results.outcomes.items()} == {0: "ok", 1: "crash", 2: "ok"}
    (shrunk,) = results.shrunk.values()
    assert shrunk.signature == "crash: KeyError in sim/storm/storm.py run"
    assert "fewer clients" in shrunk.taken_away
    assert shrunk.replays
    assert shrunk.command in (tmp_path / "report.md").read_text()
    assert "verdict" in (tmp_path / shrunk.timeline).read_text()
    capsys.readouterr()
    assert command.main(shlex.split(shrunk.command)[3:]) == 3
    assert f"signature: {shrunk.signature}" in capsys.readouterr().out


@pytest.mark.usefixtures("seeds_that_fail")
def test_a_campaign_that_was_killed_goes_on(tmp_path: Path) -> None:
    """If a killed campaign has left an incomplete line, the next session cuts it off."""
    arguments = ["--campaign", "--profile", "calm", "--workers", "1", "--out", str(tmp_path), "--seeds", "1"]
    path = tmp_path / "results.jsonl"
    path.write_text(line_of(outcome(0)) + line_of(outcome(1))[:30])
    assert command.main([*arguments, "--first-seed", "2"]) == 0
    assert command.main([*arguments, "--first-seed", "4"]) == 0
    assert sorted(Results.parse(path.read_text().splitlines()).outcomes) == [0, 2, 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_campaign_that_is_interrupted_writes_its_report(number: signal.Signals, tmp_path: Path) -> None:
    """A campaign interrupted by Ctrl-C or SIGTERM reports its finished runs, ignores the others, and ends with 130."""
    arguments = [
        "--campaign",
        "--profile",
        "lite",
        "--workers",
        "1",
        "--hours",
        "0.2",
        "--first-seed",  # seed 0 would also record coverage
        "1",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *arguments], stdout=subprocess.PIPE, text=True
    )
    results = tmp_path / "results.jsonl"
    deadline = time.monotonic() + 300.0
    try:
        while not results.exists() or not results.read_text().endswith("\n"):
            assert process.poll() is None
            assert time.monotonic() < deadline, "no run has ended in time"
            time.sleep(0.1)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in printed
    known = Results.parse(results.read_text().splitlines()).outcomes
    assert {each.verdict for each in known.values()} == {"ok"}
    assert f"{len(known)} seeds, 0 of them failed" in (tmp_path / "report.md").read_text()


def test_watching_a_run_for_its_timeline_does_not_change_it() -> None:
    """Observing a run for its timeline does not change its digest. The timeline has named messages and growing high
    watermarks."""
    result, timeline = observe(1, SHORT)
    assert result.digest == run(1, SHORT).digest
    apis = {message[4] for message in timeline.messages}
    assert {"Produce", "Fetch", "BrokerRegistration", "CreateTopics", "Vote"} <= apis
    assert "unknown" not in apis
    assert all(sent <= received for sent, received, *_ in timeline.messages)
    for points in timeline.high_watermarks["replicated-0"].values():
        offsets = [offset for _, offset in points]
        assert offsets == sorted(offsets)
    page = timeline.to_html(result, "python -m sim --seed 1", "abc")
    data = json.loads(page.partition("const run = ")[2].partition(";\n")[0].replace("<\\/", "</"))
    assert len(data["messages"]) == len(timeline.messages)
    assert data["digest"] == result.digest
    assert {"node-1", "node-2", "node-3"} <= set(data["lanes"])
    assert all(0 <= each[2] < len(data["lanes"]) for each in data["messages"])


@pytest.mark.parametrize(
    "bad", [["--workers", "0"], ["--hours", "0"], ["--profile", "stormy"], ["--nodes", "1"]]
)
def test_a_campaign_that_is_not_understood_is_no_verdict(bad: list[str], tmp_path: Path) -> None:
    """A command line that is not understood ends with 64, as for single runs."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--campaign", "--out", str(tmp_path), *bad])
    assert ended.value.code == 64


def test_a_run_without_end_is_given_up_by_its_cpu_time() -> None:
    """A run that computes without end is stopped by its CPU time. The answer of a run in time is used."""
    worker = Worker(1, "abc", 0.3)
    for program, answer in (
        ("while True: pass", None),
        ("print('done')", "done"),
    ):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert worker._line(process, 0.3 if answer is None else 60.0) == answer
            assert worker._is_endless is (answer is None)
            process.kill()
