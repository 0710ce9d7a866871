"""Decisions about brokers: a controller that decides without the heartbeats it needs is noticed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek.metadata_quorum.raft.roles import Leader
from odradek.wire.messages import metadata_records as wire
from odradek.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from odradek.wire.structure import Message
from sim.checks.answers.handed_blocks import HandedBlocks
from sim.checks.answers.heard_heartbeats import LOG_SECONDS, LOG_WAKES, HeardHeartbeats
from sim.checks.folds.metadata_fold import MetadataFold
from sim.checks.found_dead import FoundDead
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.network import SimConn

BROKER, CONTROLLER, EPOCH = 1, 9, 3
DIRS = [bytes([number]) * 16 for number in (11, 12, 13)]
SESSION_SECONDS = 4.0


class Stage:
    """A controller that leads in epoch 3 from the start, with a fold that is judged by the check."""

    def __init__(self) -> None:
        config = SimpleNamespace(node_id=CONTROLLER, explicit={"broker.session.timeout.ms": "4000"})
        self.member = SimpleNamespace(name="node-9", config=config, newest_config=config, older_config=config)
        self.broker = SimpleNamespace(epoch=EPOCH, log_dirs=DIRS)
        image = SimpleNamespace(brokers={BROKER: self.broker})
        self.core = SimpleNamespace(role=None)
        quorum = SimpleNamespace(is_open=True, core=self.core)
        self.node = SimpleNamespace(metadata=SimpleNamespace(committed_image=image, quorum=quorum))
        self.env = SimpleNamespace(wakes=0)
        self.world = SimpleNamespace(now=0.0, node_env=lambda name: self.env)
        self.found = SimpleNamespace(found=set())
        processes = SimpleNamespace(
            world=self.world,
            living=list,
            at=lambda conn: (self.member, self.node),
            named=lambda name: (self.member, self.node),
        )
        self.check = HeardHeartbeats(cast("Processes", processes), cast("FoundDead", self.found))
        self.lead(1)
        self.fold = MetadataFold(self.check.judge)
        self.commit(
            wire.RegisterBrokerRecord(
                broker_id=BROKER, broker_epoch=EPOCH, incarnation_id=DIRS[0], log_dirs=DIRS, fenced=True
            )
        )

    def lead(self, epoch: int) -> None:
        """Let the controller lead in a new epoch."""
        self.core.role = Leader(epoch, None, 0, (), 0.0, 0.0)
        self.check.lead(epoch, cast("Any", self.member), cast("Any", self.node))

    def commit(self, *records: Message) -> None:
        self.fold.take(self.fold.offset + len(records), 1, records)

    def beat(self, *, reached: int = EPOCH, is_heard: bool = True, **fields: Any) -> None:
        """Send a heartbeat, and answer it if the controller hears it."""
        request = BrokerHeartbeatRequest(BROKER, EPOCH, reached, **fields)
        exchange = Exchange(cast("SimConn", SimpleNamespace(peer=None)), 63, 2, request)
        assert self.check.asked(exchange)
        if is_heard:
            self.check.answered(exchange, BrokerHeartbeatResponse(0, 0))

    def log_is_read(self) -> None:
        """Let the time pass for which the judgement waits."""
        self.world.now += LOG_SECONDS
        self.env.wakes += LOG_WAKES
        self.check.look([])


UNFENCED = wire.BrokerRegistrationChangeRecord(BROKER, EPOCH, -1)
FENCED = wire.BrokerRegistrationChangeRecord(BROKER, EPOCH, 1)


def test_unfenced_by_a_heartbeat() -> None:
    """A broker that has reached its own registration may be unfenced."""
    stage = Stage()
    stage.beat()
    stage.commit(UNFENCED)
    assert stage.check.unfenced_seen == 1


def test_unfenced_too_soon() -> None:
    """A broker that has not read its own registration stays fenced."""
    stage = Stage()
    stage.beat(reached=EPOCH - 1)
    with pytest.raises(SafetyViolation, match=r"unfences broker 1 in epoch 3.*have reached 2"):
        stage.commit(UNFENCED)


def test_offline_directories_that_are_gone() -> None:
    """A registration may lose the reported directories, or keep all if all of them are offline."""
    stage = Stage()
    stage.broker.log_dirs = DIRS[2:]
    stage.beat(offline_log_dirs=DIRS[:2])
    stage.beat(offline_log_dirs=DIRS)
    assert stage.check.offline_seen == 2


def test_an_offline_directory_that_stays() -> None:
    """A reported directory that stays in the registration is noticed."""
    stage = Stage()
    stage.broker.log_dirs = DIRS[1:]
    with pytest.raises(SafetyViolation, match="2 directories are offline, and 1 of them stay"):
        stage.beat(offline_log_dirs=DIRS[:2])


def running() -> Stage:
    """Begin with an unfenced broker that was heard at 10 s."""
    stage = Stage()
    stage.world.now = 10.0
    stage.beat()
    stage.commit(UNFENCED)
    return stage


def test_fenced_after_a_silence() -> None:
    """A controller may fence a broker that was silent for half a session. It need not have heard all heartbeats."""
    stage = running()
    stage.world.now += SESSION_SECONDS
    stage.beat(is_heard=False)
    stage.commit(FENCED)
    stage.log_is_read()
    assert stage.check.fenced_seen == 1


def test_fenced_although_it_was_heard() -> None:
    """A broker that was heard just now is fenced only for another reason."""
    stage = running()
    stage.world.now += 0.1
    stage.commit(FENCED)
    with pytest.raises(SafetyViolation, match=r"fences broker 1 in epoch 3; .* sent 0\.10 s ago"):
        stage.log_is_read()


def test_fenced_by_a_new_controller() -> None:
    """A controller that has just begun to lead gives each broker the time for a heartbeat."""
    stage = running()
    stage.world.now += SESSION_SECONDS
    stage.lead(2)
    stage.fold.take(stage.fold.offset + 1, 2, [FENCED])
    with pytest.raises(SafetyViolation, match=r"it leads for 0\.00 s"):
        stage.log_is_read()


def test_fenced_by_a_controller_that_has_lost_the_leadership() -> None:
    """A controller that leads no longer may have lost the reason, too."""
    stage = running()
    stage.commit(FENCED)
    stage.core.role = None
    stage.log_is_read()
    assert stage.check.fenced_seen == 1


@pytest.mark.parametrize("reason", ["asked", "shuts down", "all directories", "found dead"])
def test_fenced_for_a_reason(reason: str) -> None:
    """A broker that has asked for it, lost all directories or was found dead may be fenced at once."""
    stage = running()
    match reason:
        case "asked":
            stage.beat(want_fence=True, is_heard=False)
        case "shuts down":
            stage.beat(want_shut_down=True, is_heard=False)
        case "all directories":
            stage.beat(offline_log_dirs=DIRS, is_heard=False)
        case _:
            stage.found.found.add((BROKER, EPOCH))
    stage.commit(FENCED)
    stage.log_is_read()
    assert stage.check.fenced_seen == 1


def hand(check: HandedBlocks, first: int, code: int = 0) -> None:
    exchange = Exchange(cast("SimConn", None), 67, 0, AllocateProducerIdsRequest(BROKER, EPOCH))
    assert check.asked(exchange)
    check.answered(exchange, AllocateProducerIdsResponse(0, code, first, 1000))


def test_blocks_of_producer_ids() -> None:
    """Disjoint blocks are accepted in any order, and errors hand out nothing."""
    check = HandedBlocks()
    for first in (2000, 0, 1000):
        hand(check, first)
    hand(check, 1000, code=1)
    assert check.seen == 3


@pytest.mark.parametrize("first", [999, 1, 0, 1999])
def test_blocks_that_overlap(first: int) -> None:
    """A block that shares an id with another block is noticed."""
    check = HandedBlocks()
    hand(check, 0)
    hand(check, 2000)
    hand(check, 1000) if first == 0 else None
    with pytest.raises(SafetyViolation, match=f"broker 1 gets {first} to"):
        hand(check, first)
