"""Options of a run: drawn from the seed, written as text, simplified step by step; and what a run reports."""

from __future__ import annotations

import attrs
import pytest

from sim.options import PROFILES, RunOptions
from sim.run import EXIT_STATUS, run, signature_of
from sim.scenarios.cluster_scenario import ClusterScenario
from tests.sim.runs.failures import Failure, in_each_way


@pytest.mark.parametrize("profile", PROFILES)
def test_options_survive_being_text(profile: str) -> None:
    """Options are equal after a round trip through text."""
    for seed in range(20):
        options = RunOptions.draw(seed, profile)
        assert RunOptions.from_json(options.to_json()) == options


def test_shares_of_the_shapes() -> None:
    """The shapes have the shares that docs/simulation.md states, and their numbers of nodes and replicas take all
    values."""
    shapes = [RunOptions.draw(seed).shape for seed in range(2000)]

    def share(count: int) -> float:
        return count / len(shapes)

    assert {shape.nodes for shape in shapes} == {3, 4, 5, 6}
    assert {shape.replicas for shape in shapes} == {1, 2, 3, 4, 5}
    assert {shape.controllers for shape in shapes} == {0, 1, 2, 3, 4, 5}
    assert {shape.voters for shape in shapes} == {0, 1, 2, 3, 4, 5}
    assert all(shape.replicas <= shape.nodes and shape.in_sync_min <= shape.replicas for shape in shapes)
    assert share(sum(shape.nodes >= 5 for shape in shapes)) >= 0.15
    assert share(sum(shape.nodes > shape.replicas for shape in shapes)) >= 1 / 3
    assert 0.2 <= share(sum(bool(shape.broker_log_dirs) for shape in shapes)) <= 0.4
    assert 0.4 <= share(sum(shape.racks > 0 for shape in shapes)) <= 0.6


def test_what_is_no_option_is_refused() -> None:
    """Options of another version, or text that is not options, are refused."""
    text = RunOptions().to_json().replace('"clients"', '"guests"')
    for bad in (text, "[]", "{}", "nonsense"):
        with pytest.raises(ValueError, match="not the options"):
            RunOptions.from_json(bad)
    with pytest.raises(ValueError, match="unknown profile"):
        RunOptions.draw(1, "stormy")


def test_making_simpler_comes_to_an_end_at_nothing() -> None:
    """Each simplification changes the options. In the end only options without any trouble are left."""
    options = RunOptions.draw(1)
    for _ in range(200):
        steps = options.simpler()
        if not steps:
            break
        assert all(step != options for _, step in steps)
        options = steps[0][1]
    assert options.simpler() == []
    assert options.storm.kinds == ()
    assert options.workloads == ("produce",)


def test_some_runs_live_for_hours() -> None:
    """At least one run in fifty of the default profile lasts for hours, with little load. Other profiles have none."""
    storms = [RunOptions.draw(seed).storm for seed in range(2000)]
    aged = [storm for storm in storms if storm.pace > 1]
    assert len(aged) >= len(storms) / 50
    assert all(storm.seconds >= 1200 for storm in aged)
    for profile in set(PROFILES) - {"default"}:
        assert all(RunOptions.draw(seed, profile).storm.pace == 1 for seed in range(200))


def test_one_seed_and_options_give_one_run() -> None:
    """The same seed and options give the same run, also through text and with tracing."""
    options = RunOptions.draw(3, "calm")
    options = attrs.evolve(options, storm=attrs.evolve(options.storm, seconds=2.0))
    lines: list[str] = []
    first = run(3, options)
    second = run(
        3, RunOptions.from_json(options.to_json()), trace=lambda _, line: lines.append(line), with_events=True
    )
    assert first.verdict == second.verdict == "ok"
    assert first.digest == second.digest
    assert first.statistics == second.statistics
    assert lines
    assert {event.what for event in second.events} >= {"boot", "log"}
    assert first.events == ()


@in_each_way
def test_each_way_to_fail_is_a_verdict(failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each way in which a run can fail, the run returns the matching verdict instead of raising."""
    failure.befall(monkeypatch, ClusterScenario)
    result = run(1, RunOptions())
    assert result.verdict == failure.verdict
    assert result.signature.startswith(failure.verdict)
    assert "at 7" in result.message
    assert EXIT_STATUS[failure.verdict] == failure.status


def test_a_signature_leaves_out_what_differs_between_runs() -> None:
    """The signature of a failure is the same for two runs with the same bug."""
    one = signature_of("safety: t-1: b'client-0:5:' was acknowledged at offset 12 at 3.250000 s")
    other = signature_of("safety: t-0: b'client-1:77:' was acknowledged at offset 9 at 18.5 s")
    assert one == other
