"""`python -m sim --seed N`: its options, output and exit status, and the command that replays a failure."""

from __future__ import annotations

import shlex
from pathlib import Path

import attrs
import pytest

from sim import __main__ as command
from sim.options import PROFILES, RunOptions
from sim.replay import difference, options_with, replay_command
from sim.scenarios.cluster_scenario import ClusterScenario
from tests.sim.runs.failures import Failure, in_each_way

SHORT = '{"storm": {"seconds": 1.0, "kinds": ["links"]}, "workloads": ["produce"]}'


@pytest.mark.parametrize("profile", PROFILES)
def test_what_differs_from_the_draw_leads_back_to_the_options(profile: str) -> None:
    """The difference between changed and drawn options is enough to restore the changed ones."""
    for seed in range(10):
        drawn = RunOptions.draw(seed, profile)
        assert difference(drawn, drawn) == {}
        for _, simpler in drawn.simpler():
            given = difference(drawn, simpler)
            assert given
            assert options_with(drawn, given) == simpler


def test_options_are_given_in_part() -> None:
    """The seed draws every option that is not given. An unknown option is refused."""
    drawn = RunOptions.draw(3)
    chosen = options_with(drawn, {"clients": 7, "storm": {"seconds": 2.5}})
    assert chosen == attrs.evolve(drawn, clients=7, storm=attrs.evolve(drawn.storm, seconds=2.5))
    for bad in ({"stormy": {}}, {"storm": {"second": 1.0}}, {"storm": 3}):
        with pytest.raises(ValueError, match="not the options"):
            options_with(drawn, bad)


def test_one_command_runs_a_seed_with_its_options_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Options as text, from a file or in the replay command give the same digest. `--trace` prints each event."""
    file = tmp_path / "options.json"
    file.write_text(SHORT)
    again = replay_command(4, options_with(RunOptions.draw(4), {"clients": 1}))
    assert again == """python -m sim --seed 4 --options '{"clients": 1}'"""
    digests = []
    for options in (["--options", SHORT], ["--options", str(file), "--trace"]):
        assert command.main(["--seed", "4", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "seed: 4"
        assert '"workloads": ["produce"]' in next(line for line in lines if line.startswith("options: "))
        assert lines[-4] == "verdict: ok"
        digests.append(lines[-3])
        assert any(" recv " in line for line in lines) == ("--trace" in options)
    assert digests[0] == digests[1]


@in_each_way
def test_a_failing_cluster_tells_the_command_that_replays_it(
    failure: Failure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing run prints one command that replays it, with the options that were given."""
    ran = failure.befall(monkeypatch, ClusterScenario)
    arguments = ["--seed", "5", "--profile", "lite", "--nodes", "5", "--options", SHORT]
    assert command.main(arguments) == failure.status
    lines = capsys.readouterr().out.splitlines()
    assert f"verdict: {failure.verdict}" in lines
    assert any(str(failure.error) in line for line in lines)
    again = next(line for line in lines if line.startswith("repeat with: "))
    words = shlex.split(again.removeprefix("repeat with: ").rpartition(" (commit ")[0])
    assert words[:3] == ["python", "-m", "sim"]
    assert command.main(words[3:]) == failure.status
    first, second = (each.options for each in ran if isinstance(each, ClusterScenario))
    assert first == second


@pytest.mark.parametrize(
    "bad",
    [
        ["--seed", "1", "--profile", "stormy"],
        ["--seed", "1", "--options", "{"],
        ["--seed", "1", "--options", '{"stormy": 1}'],
        ["--seed", "1", "--options", "no-such-file.json"],
        [],
    ],
)
def test_what_is_not_understood_is_no_verdict(bad: list[str]) -> None:
    """A command line that is not understood ends with 64. argparse's status 2 would mean liveness."""
    with pytest.raises(SystemExit) as ended:
        command.main(bad)
    assert ended.value.code == 64
