"""Parts of the product alone, under schedules from seeds: every promise of Raft, of replication and of groups is kept."""

from __future__ import annotations

import pytest

from sim import __main__ as command
from sim.alone import raft_alone, replication_alone
from sim.alone.groups import groups_alone
from sim.alone.quorum import quorum_alone
from tests.mutants.patching import patched

RAFT_SEEDS = range(60)
REPLICATION_SEEDS = range(200)
QUORUM_SEEDS = (*range(30), 50307, 50346)
"""In the last two, a step commits with the voters before, and then changes them: one joins, the leader goes."""
GROUPS_SEEDS = range(60)


def test_the_quorum_keeps_rafts_promises() -> None:
    """Figure 3 of the paper, in any order of letters, over deaths between any two effects; and it heals."""
    found = [raft_alone.run(seed) for seed in RAFT_SEEDS]
    assert sum(each["leaders"] for each in found) > len(RAFT_SEEDS)
    assert sum(each["committed"] for each in found) > len(RAFT_SEEDS)
    assert raft_alone.run(3) == found[3]


def test_replicas_keep_what_was_acknowledged() -> None:
    """ "A committed message will not be lost, as long as there is at least one in sync replica alive, at all times." """
    found = [replication_alone.run(seed) for seed in REPLICATION_SEEDS]
    assert sum(each["acknowledged"] for each in found) > 10 * len(REPLICATION_SEEDS)
    assert sum(each["deaths"] for each in found) > len(REPLICATION_SEEDS)
    assert replication_alone.run(3) == found[3]


def test_the_quorums_driver_keeps_rafts_promises() -> None:
    """Figure 3 of the paper, held against the bytes on the disks, over deaths at any await; and it heals."""
    found = [quorum_alone.run(seed) for seed in QUORUM_SEEDS]
    assert sum(each["leaders"] for each in found) > len(QUORUM_SEEDS)
    assert sum(each["acknowledged"] for each in found) > 5 * len(QUORUM_SEEDS)
    assert sum(each["deaths"] for each in found) > len(QUORUM_SEEDS)
    assert quorum_alone.run(3) == found[3]


def test_group_coordinators_keep_what_was_acknowledged() -> None:
    """A commit that was acknowledged is found by every later coordinator, and generations fence; the group heals."""
    found = [groups_alone.run(seed) for seed in GROUPS_SEEDS]
    assert sum(each["acknowledged"] for each in found) > 10 * len(GROUPS_SEEDS)
    assert sum(each["loads"] for each in found) > len(GROUPS_SEEDS)
    assert sum(each["deaths"] for each in found) > len(GROUPS_SEEDS)
    assert groups_alone.run(3) == found[3]


@pytest.mark.parametrize("part", ["raft", "quorum", "replication", "groups"])
def test_the_command_runs_them(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sim --alone PART --seed N`, with the exit statuses of whole clusters."""
    assert command.main(["--alone", part, "--seed", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verdict: ok"


def test_the_command_tells_how_to_run_a_failing_schedule_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A bug in the core (votes that are not saved first) is a broken promise: exit status 1."""
    with patched(
        "metadata_quorum.raft.core_state:CoreState._save", "if state != self._saved:", "if not self._saved:"
    ):
        assert command.main(["--alone", "raft", "--seed", "0"]) == 1
    assert "again: python -m sim --alone raft --seed 0" in capsys.readouterr().out
