"""Parts of the product alone, under random schedules: the promises of Raft, of replication and of groups are kept."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from odradek.data_plane.groups.offsets import FetchedOffsets
from odradek.data_plane.transactions.requests import InitProducer
from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.second_voices import SecondVoices
from odradek.wire.errors import ErrorCode
from sim import __main__ as command
from sim.alone import raft_alone, replication_alone, silence_alone
from sim.alone.consumers import commits_alone, consumers_alone, positions_alone
from sim.alone.groups import groups_alone
from sim.alone.groups.group_checks import GroupPromises
from sim.alone.logs import logs_alone
from sim.alone.parts import run_part
from sim.alone.quorum import moved_voters, quorum_alone
from sim.alone.quorum.quorum_checks import whole_log
from sim.alone.quorum.quorum_node import Node
from sim.alone.quorum.quorum_platter import LoggedBatch
from sim.alone.replication_broker import Broker
from sim.alone.transactions import transactions_alone
from sim.alone.transactions.repeated_inits import RepeatedInits
from sim.history import SafetyViolation
from tests.mutants.patching import patched

AT = ("loners", "t", 0)
RAFT_SEEDS = range(30)
REPLICATION_SEEDS = range(100)
QUORUM_SEEDS = (*range(12), 50307, 50346, 903285, 905949, 8600017, 25000326, 26000101)
"""In 50307 and 50346, one step commits with the old voters and then changes them: a voter joins, and the leader leaves.

In 903285 a power loss leaves a hole in unsynced data. In 905949 a candidate gets its votes after its epoch has ended.
In 8600017 a leader's disk is slow, so its followers have a committed batch before its own file does.
In 25000326 such a batch also removes the leader from the voters. In 26000101 the only other voter loads a snapshot in
chunks of 200 bytes, for longer than a leader waits for fetches.
"""
LOGS_SEEDS = (*range(60), 373, 401, 511, 1668)
"""In 373, a full disk refuses the first batch of a producer's epoch. In 1668, a truncation that is undone differs only by
the epoch of a marker. In 401, a transaction whose producer has expired is cut away. In 511, a full disk refuses a snapshot of the producers,
and retention removes their batches."""
SILENCE_SEEDS = range(60)
MOVED_SEEDS = (*range(8), 3440049)
"""In the last seed, one lost message delayed later look-ups for a copy, so a copy of a voter's directory was counted as
a voter."""
GROUPS_SEEDS = (*range(30), 2167035, 2172304)
"""In the last two seeds, a coordinator that does not know yet that it was deposed answers an OffsetFetch."""
CONSUMERS_SEEDS = (*range(40), 148, 41600574)
"""In 148, a classic group without any generation is upgraded.

In the last seed, a group changes its protocol twice while a member is silent.
"""
COMMITS_SEEDS = range(100)
POSITIONS_SEEDS = (*range(100), 503, 1275)
"""In the last two seeds, a deposed leader answers a fetch after the position was validated with its successor."""
HALF_DECISION_SEED = 24000947
"""With the knobs of this seed, a decision is written in batches of one record, and a replica lacks the last one."""
TRANSACTIONS_SEEDS = (*range(30), 133, 6592952)
"""In 133, the decision that ends one transaction also begins and aborts the next one.

In the last seed, a coordinator loads a decision above the high watermark and then dies.
"""


def test_the_quorum_keeps_rafts_promises() -> None:
    """The promises of Raft's figure 3 hold for any order of messages and for deaths between any two effects. Then the
    quorum heals."""
    found = [raft_alone.run(seed) for seed in RAFT_SEEDS]
    assert sum(each["leaders"] for each in found) > len(RAFT_SEEDS)
    assert sum(each["committed"] for each in found) > len(RAFT_SEEDS)
    assert raft_alone.run(3) == found[3]


def test_replicas_keep_what_was_acknowledged() -> None:
    """A committed record is never lost as long as one in-sync replica is alive."""
    found = [replication_alone.run(seed) for seed in REPLICATION_SEEDS]
    assert sum(each["acknowledged"] for each in found) > 10 * len(REPLICATION_SEEDS)
    assert sum(each["deaths"] for each in found) > len(REPLICATION_SEEDS)
    assert replication_alone.run(3) == found[3]


def test_logs_keep_what_they_call_durable() -> None:
    """Logs, their upkeep and the cleaner agree with a model of their batches, through crashes at any call to the disk."""
    found = [logs_alone.run(seed) for seed in LOGS_SEEDS]
    assert sum(each["deaths"] for each in found) > len(LOGS_SEEDS)
    assert sum(each["passes"] for each in found) > len(LOGS_SEEDS)
    assert logs_alone.run(3) == found[3]


@pytest.mark.parametrize(
    ("seeds", "function", "old", "new", "complaint"),
    [
        (
            range(70, 80),
            "odradek.data_plane.log.directory.offset_checkpoints:OffsetCheckpoints.log_start_text",
            "dict(self.starts)",
            "dict[TopicPartition, int]()",
            "begins at 14, and had stored 15 as its start",
        ),
        (
            range(50, 60),
            "odradek.data_plane.log.loading:_settle_offsets",
            "log.epochs.truncate_from_end(log.log_end_offset + 1)",
            "pass",
            "the last leader epoch and its start, .* lie above the log end",
        ),
        (
            range(50, 60),
            "odradek.data_plane.log.parts.producer_state:ProducerState.expire",
            "elif begin < NO_BEGIN and now_ms - silent_since(begin) >= expiration_ms:",
            "elif now_ms - (timestamp_ms if begin >= 0 else silent_since(begin)) >= expiration_ms:",
            "is stable up to 0, and its transactions up to 12",
        ),
    ],
    ids=["starts of unread logs", "epochs behind a damaged end", "open transactions expire"],
)
def test_troubles_of_a_disk_and_a_clock_show_bugs_of_logs(
    seeds: range, function: str, old: str, new: str, complaint: str
) -> None:
    """With a planted bug, a schedule whose disk is damaged or whose machine has lost its date fails."""
    with (
        patched(function, old, new),
        pytest.raises((SafetyViolation, AssertionError), match=complaint),
    ):
        _run_logs(seeds)


def _run_logs(seeds: range) -> None:
    for seed in seeds:
        logs_alone.run(seed)


def test_no_living_broker_is_fenced_by_two_voices() -> None:
    """Within six hours of virtual time nobody is fenced for pauses, a loaded machine, or a bad link. Dead hosts are
    noticed."""
    found = [silence_alone.run(seed) for seed in SILENCE_SEEDS]
    assert sum(each["virtual_seconds"] for each in found) > 6 * 3600
    assert sum(each["pauses"] for each in found) > 5 * len(SILENCE_SEEDS)
    assert sum(each["spoken_against"] for each in found) > 20 * len(SILENCE_SEEDS)
    assert silence_alone.run(3) == found[3]


@pytest.mark.parametrize("voice", ["the controller's", "another broker's"])
def test_one_voice_alone_would_fence_living_brokers(voice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one voice were enough, a single bad link would have a living broker fenced within a few schedules."""
    if voice == "the controller's":
        monkeypatch.setattr(SecondVoices, "against", lambda *_: 1)
        note = SecondVoices.note
        monkeypatch.setattr(SecondVoices, "note", lambda self, *said: note(self, *said) or True)
        monkeypatch.setattr(silence_alone, "COMPARE_SECONDS", 10.0)
    else:
        monkeypatch.setattr(BrokerSessions, "silent", lambda _self, image, _since: sorted(image.brokers))

    def search() -> None:
        for seed in SILENCE_SEEDS:
            silence_alone.run(seed)

    with pytest.raises(SafetyViolation, match="living brokers were fenced"):
        search()


def test_the_quorums_driver_keeps_rafts_promises() -> None:
    """The promises of Raft's figure 3 hold for the bytes on disk and for deaths at any await. Then the quorum heals."""
    found = [quorum_alone.run(seed) for seed in QUORUM_SEEDS]
    assert sum(each["leaders"] for each in found) > len(QUORUM_SEEDS)
    assert sum(each["acknowledged"] for each in found) > 5 * len(QUORUM_SEEDS)
    assert sum(each["deaths"] for each in found) > len(QUORUM_SEEDS)
    assert quorum_alone.run(3) == found[3]


def test_voters_that_have_moved_find_each_other_and_a_copy_elects_nobody() -> None:
    """Voters that have moved find each other (KIP-853), and the log then has all new addresses."""
    found = [moved_voters.run(seed) for seed in MOVED_SEEDS]
    assert sum(each["moves"] for each in found) > 2 * len(MOVED_SEEDS)
    assert sum(each["leaders"] for each in found) > 2 * len(MOVED_SEEDS)
    assert sum(each["copies"] for each in found) > 1
    assert moved_voters.run(3) == found[3]


def test_half_of_a_decision_may_leave_a_group_without_any_value() -> None:
    """The last member has left, and the record that deletes the group is missing. A coordinator may load no group."""
    assert run_part("consumers", HALF_DECISION_SEED)


@pytest.mark.parametrize(
    ("trouble", "function", "old", "new", "message"),
    [
        pytest.param(
            "all",
            "odradek.metadata_quorum.replica.asking.voter_search:VoterSearch.bootstrap_places",
            "return list(found)",
            "return []",
            "does not come together",
            id="nobody looks for voters",
        ),
        pytest.param(
            "copy",
            "odradek.metadata_quorum.replica.asking.own_copy:OwnCopy._place_in_log",
            "return None if any(",
            "return None if True or any(",
            "is led by|was committed there|lacks committed records",
            id="a copy takes part",
        ),
    ],
)
def test_schedules_of_moves_see_what_their_rules_are_for(
    trouble: str, function: str, old: str, new: str, message: str
) -> None:
    """If one of the rules that detect copies and moves is removed, some schedule breaks a promise."""

    def search() -> None:
        for seed in range(60):
            moved_voters.run(seed, moved_voters.MovePlan(trouble))

    with patched(function, old, new), pytest.raises(SafetyViolation, match=message):
        search()


def test_group_coordinators_keep_what_was_acknowledged() -> None:
    """Every later coordinator finds acknowledged commits, old generations are fenced, and the group heals."""
    found = [groups_alone.run(seed) for seed in GROUPS_SEEDS]
    assert sum(each["acknowledged"] for each in found) > 10 * len(GROUPS_SEEDS)
    assert sum(each["loads"] for each in found) > len(GROUPS_SEEDS)
    assert sum(each["deaths"] for each in found) > len(GROUPS_SEEDS)
    assert sum(each["forgotten"] for each in found) > 0
    assert groups_alone.run(3) == found[3]


COORDINATOR = "odradek.data_plane.groups.coordinator:Shard.forget_topics"
RESTORING = "odradek.data_plane.groups.membership:Membership._restore_members"


@pytest.mark.parametrize(
    ("function", "old", "new", "message"),
    [
        (
            COORDINATOR,
            "self._deleted_topics.update(dict.fromkeys(sorted(topics)))",
            "pass",
            "keeps offsets of",
        ),
        (RESTORING, "self._sessions.renew(turn, group, member)", "pass", "the session of .* never ends"),
    ],
)
def test_a_coordinator_that_loads_forgets_nothing(function: str, old: str, new: str, message: str) -> None:
    """A topic that is deleted during a load keeps its offsets, or restored members have no session: a schedule notices."""

    def search() -> None:
        for seed in range(100):
            groups_alone.run(seed)

    with patched(function, old, new), pytest.raises(SafetyViolation, match=message):
        search()


def test_consumer_groups_hand_partitions_over_one_by_one() -> None:
    """A partition has one owner at a time, despite deaths, migrations and late workers. In the end each has an owner
    (KIP-848)."""
    found = [consumers_alone.run(seed) for seed in CONSUMERS_SEEDS]
    assert sum(each["acknowledged"] for each in found) > 4 * len(CONSUMERS_SEEDS)
    assert sum(each["handed over"] for each in found) > len(CONSUMERS_SEEDS) // 8
    assert sum(each["migrations"] for each in found) > len(CONSUMERS_SEEDS) // 8
    assert sum(each["loads"] for each in found) > len(CONSUMERS_SEEDS)
    assert consumers_alone.run(3) == found[3]


def test_a_members_commits_stay_in_order_and_in_its_membership() -> None:
    """A committed offset never goes back, and belongs to the ownership for which it was requested. Each commit ends."""
    found = [commits_alone.run(seed) for seed in COMMITS_SEEDS]
    assert sum(each["accepted"] for each in found) > 4 * len(COMMITS_SEEDS)
    assert sum(each["refused"] for each in found) > len(COMMITS_SEEDS)
    assert sum(each["succeeded"] for each in found) > 3 * len(COMMITS_SEEDS)
    assert sum(each["thrown out"] for each in found) > len(COMMITS_SEEDS) // 2
    assert sum(each["rebalances"] for each in found) > len(COMMITS_SEEDS)
    assert commits_alone.run(3) == found[3]


COMMITS = "odradek.client.consumer.commits:Commits."


@pytest.mark.parametrize(
    ("function", "old", "new", "complaint"),
    [
        (COMMITS + "_send", "self._queue[0] is not batch", "False", "the committed offset goes back"),
        (
            COMMITS + "_are_held",
            "partitions.get(key) is batch.held[key]",
            "True",
            "was requested in ownership",
        ),
        (COMMITS + "_send_once", "return error.errors", "return {}", "has succeeded, but only"),
        (COMMITS + "_wait_for_assignment", "self._core.now >= batch.deadline", "False", "has not ended"),
    ],
    ids=["overtaking", "deposed members", "refused offsets", "a commit without end"],
)
def test_schedules_of_commits_see_broken_laws(function: str, old: str, new: str, complaint: str) -> None:
    """With a planted bug in the client's commits, a schedule fails."""

    def search() -> None:
        for seed in range(300):
            commits_alone.run(seed)

    with patched(function, old, new), pytest.raises(SafetyViolation, match=complaint):
        search()


def test_a_consumer_notices_that_a_log_was_cut() -> None:
    """A consumer notices each cut below its position, before it returns more records (KIP-320)."""
    found = [positions_alone.run(seed) for seed in POSITIONS_SEEDS]
    assert sum(each["records"] for each in found) > 10 * len(POSITIONS_SEEDS)
    assert sum(each["notices"] for each in found) > len(POSITIONS_SEEDS) // 3
    assert sum(each["cuts"] for each in found) > 2 * len(POSITIONS_SEEDS)
    assert positions_alone.run(3) == found[3]


@pytest.mark.parametrize(
    ("function", "old", "new", "seeds"),
    [
        (
            "odradek.client.consumer.positions:Positions._validated",
            "if end_offset >= state.fetch_offset and end_epoch >= 0:",
            "if end_epoch >= 0:",
            range(50),
        ),
        (
            "odradek.client.consumer.fetch_loop:Fetching._is_outdated",
            "epoch < min(state.validated_epoch, partition.leader_epoch)",
            "False",
            (503,),
        ),
    ],
    ids=["truncations", "late answers"],
)
def test_schedules_of_positions_see_cuts_that_are_not_noticed(
    function: str, old: str, new: str, seeds: Iterable[int]
) -> None:
    """With a planted bug, a consumer goes on behind a cut, and a schedule notices."""

    def search() -> None:
        for seed in seeds:
            positions_alone.run(seed)

    with patched(function, old, new), pytest.raises(SafetyViolation, match="that was cut"):
        search()


def test_transactions_are_there_whole_or_not_at_all() -> None:
    """A transaction ends as its producer was answered, despite deaths, late markers and late requests. None stays open
    (KIP-98)."""
    found = [transactions_alone.run(seed) for seed in TRANSACTIONS_SEEDS]
    assert sum(each["committed"] for each in found) > len(TRANSACTIONS_SEEDS)
    assert sum(each["aborted"] for each in found) > len(TRANSACTIONS_SEEDS)
    assert sum(each["deaths"] for each in found) > len(TRANSACTIONS_SEEDS)
    assert sum(each["repeated"] for each in found) > 0
    assert transactions_alone.run(3) == found[3]


def test_a_broken_law_of_transactions_is_noticed() -> None:
    """Each added partition begins the transaction's time anew: a schedule notices."""

    def search() -> None:
        for seed in range(40):
            transactions_alone.run(seed)

    function = "odradek.data_plane.transactions.machine:TransactionMachine._add"
    old = "start_ms=transaction.start_ms if is_open else turn.wall_ms"
    with patched(function, old, "start_ms=turn.wall_ms"), pytest.raises(SafetyViolation, match="began at"):
        search()


def test_a_producer_is_not_fenced_by_itself() -> None:
    """A producer that repeats InitProducerId gets the epoch behind its own, unless another producer has begun."""
    inits = RepeatedInits()
    again = InitProducer("id", 1000, 5, 3)
    inits.arrived(InitProducer("id", 1000, -1, -1), 10)
    inits.arrived(again, 20)
    inits.answered(again, 4, 10)
    for wrong, complaint in ((None, "is fenced"), (5, "gets epoch 5")):
        with pytest.raises(SafetyViolation, match=complaint):
            inits.answered(again, wrong, 10)
    inits.arrived(InitProducer("id", 1000, -1, -1), 30)
    inits.answered(again, None, 10)
    assert inits.seen == 3


class Offsets(GroupPromises):
    """The check of OffsetFetch answers. Offset 3 was committed in leader epoch 1, and offset 7 in epoch 2; both were
    acknowledged."""

    def __init__(self) -> None:
        super().__init__(2, 1000, lambda: 0)
        self._acknowledged[AT] = {1: 3, 2: 7}

    def look(self, living: object) -> None:
        """Skip the check of replicas: there are none."""


@pytest.mark.parametrize(
    ("epoch", "least"),
    [pytest.param(1, 3, id="deposed"), pytest.param(2, 7, id="the same"), pytest.param(3, 7, id="later")],
)
def test_a_coordinator_is_held_to_the_commits_of_its_own_epoch_and_before(epoch: int, least: int) -> None:
    """A coordinator must find all commits of its own epoch and before. A deposed coordinator need not know later
    commits."""
    promises = Offsets()
    node = cast("Broker", SimpleNamespace(partition=SimpleNamespace(leader_epoch=epoch)))
    with pytest.raises(SafetyViolation, match=f"was committed at {least}, and is not found"):
        promises.fetched(node, "loners", promises.floor(), FetchedOffsets(ErrorCode.NONE, {}))


def test_a_coordinator_before_the_first_commit_may_find_nothing() -> None:
    """An answer from an epoch before all acknowledged commits may be empty."""
    promises = Offsets()
    node = cast("Broker", SimpleNamespace(partition=SimpleNamespace(leader_epoch=0)))
    promises.fetched(node, "loners", promises.floor(), FetchedOffsets(ErrorCode.NONE, {}))


def logged(base_offset: int) -> LoggedBatch:
    """Make a batch of one record."""
    return LoggedBatch(base_offset, base_offset, 1, 0, False, b"", 0)


def replica(*, is_open: bool) -> Node:
    """Make a replica whose log lacks offset 1."""
    platter = SimpleNamespace(log=lambda: [logged(0), logged(2)])
    service = SimpleNamespace(quorum=SimpleNamespace(is_open=is_open))
    return cast("Node", SimpleNamespace(node_id=1, platter=platter, service=service))


def test_a_hole_in_the_log_of_an_open_quorum_is_found() -> None:
    """If no start has checked a log since a power loss, the log counts only up to a hole. In a log in use, a hole is a
    violation."""
    assert whole_log(replica(is_open=False)) == [logged(0)]
    with pytest.raises(SafetyViolation, match="hole"):
        whole_log(replica(is_open=True))


@pytest.mark.parametrize(
    "part",
    ["raft", "quorum", "moved", "replication", "groups", "consumers", "commits", "positions", "transactions"],
)
def test_the_command_runs_them(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sim --alone PART --seed N` runs a schedule, with the same exit statuses as for clusters."""
    assert command.main(["--alone", part, "--seed", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verdict: ok"


def test_the_command_tells_how_to_run_a_failing_schedule_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A planted bug, votes that are not saved, ends the command with 1 and prints how to replay it."""
    with patched(
        "odradek.metadata_quorum.raft.core_state:CoreState._save",
        "if state != self._saved:",
        "if not self._saved:",
    ):
        assert command.main(["--alone", "raft", "--seed", "0"]) == 1
    assert "repeat with: python -m sim --alone raft --seed 0" in capsys.readouterr().out
