"""The audit log's lines about changes of metadata.

Each record belongs to one line, by epoch and offset, even after a lost lead.
"""

from __future__ import annotations

from typing import Any

from odradek.metadata_quorum.envelope import Sender
from odradek.security.audit.audit_lines import Payer, PreparedLine
from odradek.security.audit.auditor import Auditor
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.control_records import VotersRecord
from sim.machine.world import World
from tests.quorum.voters.controllers import Controllers, Member, host_of, play, register, remove

ALICE = Sender("User:alice", "laptop", "10.0.0.9")


class Lines:
    """An audit log that keeps its lines in a list."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def note(self, event: str, /, payer: Payer | None = None, count: int = 1, **fields: Any) -> None:
        assert (None if payer is None else payer.principal) in (None, fields["principal"])
        self.all.append(fields)

    def put(self, line: PreparedLine, count: int = 1) -> None:
        raise AssertionError("a prepared line was written, but only refusals prepare lines")


def audited(member: Member) -> list[dict[str, Any]]:
    """Return a list that receives the audit lines of a controller from now on."""
    lines = Lines()
    member.service.auditor = Auditor(member.node_id)
    member.service.auditor.lines = lines
    return lines.all


def test_each_decision_has_a_line_with_its_offsets() -> None:
    """A decision's line has its first and last offset.

    The line names the client, or the node if it is the controller's own decision.
    """

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        lines = audited(leader)
        end = leader.service.quorum.decisions.log_end_offset
        leader.service.submit(register(100), None, ALICE)
        leader.service.submit(register(101))
        await controllers.until(lambda: len(lines) == 2)
        assert [(each["principal"], each["address"], each["client_id"], each["api"]) for each in lines] == [
            ("User:alice", "10.0.0.9", "laptop", "BrokerRegistration"),
            (f"node {leader.node_id}", None, None, "BrokerRegistration"),
        ]
        assert [(each["first_offset"], each["last_offset"], each["outcome"]) for each in lines] == [
            (end, end, "committed"),
            (end + 1, end + 1, "committed"),
        ]
        await controllers.agree()
        epochs = {
            batch.base_offset + place: batch.epoch
            for batch in controllers.log_of(leader.node_id)
            for place in range(len(batch.records))
        }
        assert [epochs[each["first_offset"]] for each in lines] == [each["epoch"] for each in lines]

    play(script)


def test_a_lost_lead_leaves_the_outcome_unknown() -> None:
    """A controller loses its lead before a decision is committed.

    The line's outcome is unknown, since the offset later holds another record.
    """

    async def script(world: World, controllers: Controllers) -> None:
        old = await controllers.leader()
        lines = audited(old)
        for each in {1, 2, 3} - {old.node_id}:
            world.partition(host_of(old.node_id), host_of(each))
        old.service.submit(register(666), None, ALICE)
        await controllers.until(lambda: not old.is_active)
        (line,) = (each for each in lines if each["principal"] == "User:alice")
        assert line["outcome"] == "unknown"
        await controllers.ask(register(101))
        for each in {1, 2, 3} - {old.node_id}:
            world.heal(host_of(old.node_id), host_of(each))
        await controllers.agree()
        (batch,) = (
            each for each in controllers.log_of(old.node_id) if each.base_offset == line["first_offset"]
        )
        assert batch.epoch > line["epoch"]

    play(script)


def test_a_change_of_the_voters_has_a_line() -> None:
    """A change of the voters has a line with the offset of its VotersRecord (KIP-853)."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        gone = min({1, 2, 3} - {leader.node_id})
        lines = audited(leader)
        for wanted in (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND):
            answers: list[Any] = []
            leader.service.change_voters(remove(gone), 0, answers.append, ALICE)
            await controllers.until(lambda answers=answers: answers)
            assert [each.error_code for each in answers] == [wanted]
        (line,) = (each for each in lines if each["api"] == "RemoveRaftVoter")
        assert (line["principal"], line["outcome"]) == ("User:alice", "committed")
        (batch,) = (
            each for each in controllers.log_of(leader.node_id) if each.base_offset == line["first_offset"]
        )
        assert isinstance(batch.records[0], VotersRecord)

    play(script)
