"""The census of a campaign: its counts, its verdicts, and how it favours options that lead to rare states."""

from __future__ import annotations

import ast
from pathlib import Path

import attrs
import pytest

from sim import __main__ as command
from sim.campaign.census import missed_by
from sim.campaign.guidance import RareStates, added_for
from sim.campaign.results import Outcome, Results, line_of
from sim.census import tally as rules
from sim.census.states import CERTAIN, DRIVEN, STATES, UNREACHABLE
from sim.census.tally import CERTAIN_SEEDS, Tally, report_of, screen_of
from sim.options import RunOptions

ROOT = Path(__file__).resolve().parents[3]
FIRST, SECOND, THIRD = tuple(STATES)[:3]


def outcome(seed: int, *, alone: tuple[str, ...] = (), **states: int) -> Outcome:
    """Make a run that reached these states. In the keywords, `__` stands for the dot of a name."""
    lost = Outcome.lost(seed, RunOptions.draw(seed), "abc", "a reason", 1.0)
    counts = {name.replace("__", "."): times for name, times in states.items()}
    return attrs.evolve(lost, verdict="ok", states=counts, alone_states=dict.fromkeys(alone, 1))


def keyed(name: str) -> str:
    """Turn a state's name into a keyword of `outcome`."""
    return name.replace(".", "__")


def test_seeds_are_counted_once_however_often_they_come_there() -> None:
    """A state counts once per seed, separately for clusters, for parts alone and for both together. States that are not
    in the table are ignored."""
    tally = Tally.of(
        [
            outcome(1, alone=(FIRST,), **{keyed(FIRST): 7, "no__state": 1}),
            outcome(2, alone=(SECOND,)),
            outcome(3),
        ]
    )
    assert (tally.seeds, tally.by_either) == (3, {FIRST: 1, SECOND: 1})
    assert (tally.by_cluster, tally.by_parts) == ({FIRST: 1}, {FIRST: 1, SECOND: 1})
    assert tally.times[FIRST] == 8
    assert tally.missing() == [name for name in STATES if name not in (FIRST, SECOND)]


def test_what_was_counted_survives_the_end_of_the_process() -> None:
    """The states of a run are stored in the campaign's file, so the next session continues counting."""
    one = outcome(1, alone=(SECOND,), **{keyed(FIRST): 7})
    results = Results.parse([line_of(one).rstrip("\n")])
    assert results.outcomes[1] == one


def test_a_certain_state_is_missed_only_after_enough_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that should certainly occur counts as missed only after enough seeds, and only if no seed has reached
    it."""
    monkeypatch.setattr(rules, "CERTAIN", frozenset({FIRST, SECOND}))
    few = [outcome(seed, **{keyed(FIRST): 1}) for seed in range(CERTAIN_SEEDS - 1)]
    assert Tally.of(few).certain_missing() == []
    assert Tally.of([*few, outcome(CERTAIN_SEEDS)]).certain_missing() == [SECOND]
    assert Tally.of([*few, outcome(CERTAIN_SEEDS, alone=(SECOND,))]).certain_missing() == []


def test_the_screen_names_what_was_missed_and_what_was_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's output names missed states without a driver or a reason. The report has a row for every state."""
    monkeypatch.setattr(rules, "CERTAIN", frozenset({SECOND}))
    monkeypatch.setattr(rules, "DRIVEN", {THIRD: "a test"})
    monkeypatch.setattr(rules, "UNREACHABLE", dict.fromkeys(tuple(STATES)[3:], "a reason"))
    tally = Tally.of(
        [outcome(seed, **({keyed(FIRST): 1} if seed == 5 else {})) for seed in range(CERTAIN_SEEDS)]
    )
    lines = screen_of(tally)
    assert f"1 of {len(STATES)} named states reached; seldom: {FIRST} 1" in lines[0]
    assert f"1 without a driver or a reason: {SECOND}" in lines[1]
    assert lines[2].endswith(f"should have reached: {SECOND}")
    rows = report_of(tally)
    assert f"| {SECOND} | 0 | 0 | 0 | 0 | certain | {STATES[SECOND]} |" in rows
    assert f"| {FIRST} | 1 | 1 | 1 | 0 |  | {STATES[FIRST]} |" in rows
    assert len(rows) == len(STATES) + 4


def test_the_command_judges_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 4 if a certain state is missed, and after all seeds also if a state has neither driver nor
    reason."""
    monkeypatch.setattr(rules, "CERTAIN", frozenset({FIRST}))
    path = tmp_path / "results.jsonl"
    assert command.main(["--census", str(tmp_path)]) == 64
    path.write_text("".join(line_of(outcome(seed)) for seed in range(3)))
    assert command.main(["--census", str(tmp_path)]) == 0
    assert "3 seeds are too few" in capsys.readouterr().out
    path.write_text("".join(line_of(outcome(seed)) for seed in range(CERTAIN_SEEDS)))
    assert command.main(["--census", str(tmp_path)]) == 4
    path.write_text("".join(line_of(outcome(seed, alone=(FIRST,))) for seed in range(CERTAIN_SEEDS)))
    assert command.main(["--census", str(tmp_path)]) == 0
    monkeypatch.setattr("sim.campaign.census.ALL_SEEDS", CERTAIN_SEEDS)
    assert command.main(["--census", str(tmp_path)]) == 4
    assert command.main(["--census", str(tmp_path), "--commit", "another"]) == 0


def test_a_campaign_judges_the_seeds_of_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign's verdict uses only runs of its own commit."""
    monkeypatch.setattr(rules, "CERTAIN", frozenset({FIRST}))
    found = [outcome(seed) for seed in range(CERTAIN_SEEDS)]
    results = Results({each.seed: each for each in found})
    assert missed_by(results, "abc") == [FIRST]
    assert missed_by(results, "another") == []
    results.add(attrs.evolve(found[0], commit="old", states={FIRST: 1}))
    results.add(outcome(CERTAIN_SEEDS))
    assert missed_by(results, "abc") == [FIRST]
    results.add(attrs.evolve(found[1], states={FIRST: 1}))
    assert missed_by(results, "abc") == []


def test_options_that_lead_to_rare_states_are_drawn_more_often() -> None:
    """An option gets weight only for states that few runs reach. Of two options, only the option with a rare state is
    drawn."""
    rare = RareStates()
    for seed in range(40):
        each = outcome(seed, **{keyed(FIRST): 1})
        if seed % 10 == 0:
            each = attrs.evolve(each, duties=("ask",), states={FIRST: 1, SECOND: 1})
        else:
            each = attrs.evolve(each, duties=("moves",))
        rare.add(attrs.evolve(each, kinds=("deaths",), workloads=("produce",)))
    weights = rare.weights()
    assert weights["duty ask"] == pytest.approx(1 / 4)
    assert weights["duty moves"] == 0.0
    options = attrs.evolve(RunOptions.draw(1), duties=(), workloads=("produce",))
    options = attrs.evolve(options, storm=attrs.evolve(options.storm, kinds=("deaths",)))
    added = {name for seed in range(80) for name in added_for(seed, options, {}, weights)}
    assert added == {"duty ask"}


def test_news_and_rare_states_weigh_alike() -> None:
    """Weights for new lines and for rare states are scaled, so that both draw their options about equally often."""
    options = attrs.evolve(RunOptions.draw(1), duties=())
    drawn = [added_for(seed, options, {"duty ask": 9000}, {"duty moves": 0.01}) for seed in range(400)]
    asks, moves = (sum(f"duty {name}" in each for each in drawn) for name in ("ask", "moves"))
    assert min(asks, moves) > max(asks, moves) / 2 > 0


def test_a_state_has_one_mark_at_most() -> None:
    """Each state is in at most one of three lists: certain, driven by a test, or unreachable."""
    marked = [*CERTAIN, *DRIVEN, *UNREACHABLE]
    assert len(marked) == len(set(marked))
    assert set(marked) <= set(STATES)


def test_each_driver_is_a_test_that_says_so() -> None:
    """The table names a test for each driven state. That test has the mark that makes it fail if the state is not
    reached."""
    for name, place in DRIVEN.items():
        file, _, function = place.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        (found,) = [node for node in ast.walk(tree) if getattr(node, "name", None) == function]
        assert isinstance(found, ast.FunctionDef)
        marks = [ast.unparse(each) for each in found.decorator_list]
        assert any("mark.reaches" in each and f"'{name}'" in each for each in marks), f"{place}: {name}"
