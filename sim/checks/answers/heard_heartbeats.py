"""Check of decisions about brokers: the heartbeats that a controller was sent justify them. PURE.

1. A broker is unfenced only after it has sent a heartbeat in this epoch whose metadata offset has reached the broker's
   own registration (KIP-631).
2. When a heartbeat is answered, the controller's metadata no longer have any directory that the heartbeat reported as
   offline, unless all directories are offline (KIP-858).
3. A broker is fenced only for a reason. The broker has asked for it, or was found dead or silent. Otherwise the
   controller has led for `SHARE` of the session timeout, and each heartbeat that it has answered is as old.

A node sends itself no messages. So decisions about the broker on the controller's own node are left out. So are those of a
controller that has died or lost the leadership since. Clocks may drift and messages may be late, so rule 3 has only a
part of the timeout. The node logs that a broker was found dead after the decision; the judgement waits `LOG_SECONDS`
for this.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.raft.roles import Leader
from odradek.node.node import Node
from odradek.wire.messages import metadata_records as wire
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from odradek.wire.structure import Message
from sim.checks.folds.metadata_fold import MetadataFold
from sim.checks.found_dead import FoundDead
from sim.checks.watched import Hosted, Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.members import Member

__all__ = ["HeardHeartbeats", "Reign"]

SHARE = 0.5
LOG_SECONDS = 1.0
LOG_WAKES = 50
"""How often a controller's tasks must have run until its log certainly has the reason for a decision."""
SESSION_TIMEOUT, SESSION_TIMEOUT_MS = "broker.session.timeout.ms", 9000
FENCE, UNFENCE = 1, -1


@attrs.frozen(eq=False)
class Reign:
    """A controller in one leader epoch, and the virtual time at which it was first seen to lead."""

    epoch: int
    member: Member
    node: Node
    since: float

    @property
    def is_over(self) -> bool:
        """True if the node leads no longer in this epoch."""
        return _led_epoch(self.node) != self.epoch


@attrs.define
class _Life:
    """The heartbeats of a broker in one epoch."""

    reached: int = -1
    """The highest metadata offset that a heartbeat had."""
    wants_rest: bool = False
    """True if the broker has asked to be fenced or to shut down."""
    offline: set[bytes] = attrs.Factory(set)
    answered: dict[str, float] = attrs.Factory(dict)
    """For each controller, the time at which the last heartbeat was sent that it has answered."""


@attrs.frozen(eq=False)
class _Fenced:
    """A decision to fence a broker that was too early, unless the broker was found dead."""

    reign: Reign
    broker: tuple[int, int]
    at: float
    wakes: int
    complaint: str


class HeardHeartbeats:
    """The check of decisions by heartbeats. `judge` is called with each committed record and the state before it."""

    def __init__(self, processes: Processes, found: FoundDead) -> None:
        self._processes = processes
        self._world = processes.world
        self._found = found
        self._reigns: dict[int, Reign] = {}
        self._lives: dict[tuple[int, int], _Life] = {}
        self._registrations: dict[int, int] = {}
        """How many registrations of each broker were committed."""
        self._early: list[_Fenced] = []
        self.unfenced_seen = self.offline_seen = self.fenced_seen = 0

    # --- heartbeats

    def asked(self, exchange: Exchange) -> bool:
        """Record a heartbeat."""
        request = exchange.request
        broker_id = request.broker_id
        life = self._lives.setdefault((broker_id, request.broker_epoch), _Life())
        life.reached = max(life.reached, request.current_metadata_offset)
        life.wants_rest |= request.want_fence or request.want_shut_down
        life.offline.update(request.offline_log_dirs)
        exchange.memo = (self._world.now, self._registrations.get(broker_id, 0))
        return True

    def answered(self, exchange: Exchange, answer: BrokerHeartbeatResponse) -> None:
        """Record that a controller has heard the broker, and check the offline directories. Raises `SafetyViolation`."""
        found = self._processes.at(exchange.conn.peer)
        if answer.error_code or found is None:
            return
        member, node = found
        request = exchange.request
        sent_at, registrations = exchange.memo
        answered = self._lives[request.broker_id, request.broker_epoch].answered
        answered[member.name] = max(sent_at, answered.get(member.name, sent_at))
        if not request.offline_log_dirs or node.metadata is None:
            return
        broker = node.metadata.committed_image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return
        if registrations != self._registrations.get(request.broker_id, 0):
            return  # The directory may be back.
        self.offline_seen += 1
        left = set(broker.log_dirs) & set(request.offline_log_dirs)
        if left and len(left) < len(broker.log_dirs):
            raise SafetyViolation(
                f"heartbeat: broker {request.broker_id} has told {member.name} that {len(request.offline_log_dirs)} "
                f"directories are offline, and {len(left)} of them stay registered"
            )

    # --- decisions

    def judge(self, state: MetadataFold, record: Message) -> None:
        """Check a committed record. Raises `SafetyViolation`."""
        match record:
            case wire.RegisterBrokerRecord():
                number = self._registrations.get(record.broker_id, 0)
                self._registrations[record.broker_id] = number + 1
            case wire.UnfenceBrokerRecord():
                self._unfenced(state, record.id, record.epoch)
            case wire.FenceBrokerRecord():
                self._fenced(state, record.id, record.epoch)
            case wire.BrokerRegistrationChangeRecord() if record.fenced == UNFENCE:
                self._unfenced(state, record.broker_id, record.broker_epoch)
            case wire.BrokerRegistrationChangeRecord() if record.fenced == FENCE:
                self._fenced(state, record.broker_id, record.broker_epoch)

    def _unfenced(self, state: MetadataFold, broker_id: int, epoch: int) -> None:
        reign = self.reign(state.epoch, broker_id)
        if reign is None:
            return
        self.unfenced_seen += 1
        life = self._lives.get((broker_id, epoch))
        if life is None or life.reached < epoch:
            raise SafetyViolation(
                f"heartbeat: {reign.member.name} unfences broker {broker_id} in epoch {epoch}, and its heartbeats "
                f"have reached {None if life is None else life.reached}"
            )

    def _fenced(self, state: MetadataFold, broker_id: int, epoch: int) -> None:
        reign = self.reign(state.epoch, broker_id)
        broker = state.brokers.get(broker_id)
        if reign is None or broker is None or broker.fenced or broker.in_controlled_shutdown:
            return
        self.fenced_seen += 1
        life = self._lives.get((broker_id, epoch), _Life())
        if life.wants_rest or set(broker.log_dirs) <= life.offline:
            return
        now, name = self._world.now, reign.member.name
        least = SHARE * _session_seconds(reign.member)
        quiet = now - life.answered.get(name, -1e9)
        if now - reign.since < least or quiet < least:
            self._early.append(
                _Fenced(
                    reign,
                    (broker_id, epoch),
                    now,
                    self._world.node_env(name).wakes,
                    f"heartbeat: {name} fences broker {broker_id} in epoch {epoch}; it leads for {now - reign.since:.2f} s, "
                    f"and has answered a heartbeat that was sent {quiet:.2f} s ago",
                )
            )

    # --- controllers

    def lead(self, epoch: int, member: Member, node: Node) -> None:
        """Record that a node leads the quorum in this epoch."""
        if epoch not in self._reigns:
            self._reigns[epoch] = Reign(epoch, member, node, self._world.now)

    def reign(self, epoch: int, broker_id: int) -> Reign | None:
        """Return the controller of an epoch; None if it leads no longer, or is on the broker's own node."""
        if epoch not in self._reigns:
            for member, node in self._processes.living():
                if _led_epoch(node) == epoch:
                    self.lead(epoch, member, node)
        reign = self._reigns.get(epoch)
        if reign is None or reign.member.config.node_id == broker_id or not self._lives_on(reign):
            return None
        return reign

    def _lives_on(self, reign: Reign) -> bool:
        found = self._processes.named(reign.member.name)
        return found is not None and found[1] is reign.node and not reign.is_over

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Judge the brokers that were fenced early, once the log must have the reason. Raises `SafetyViolation`."""
        if not self._early:
            return
        waiting: list[_Fenced] = []
        for each in self._early:
            if each.broker in self._found.found or not self._lives_on(each.reign):
                continue
            wakes = self._world.node_env(each.reign.member.name).wakes
            if self._world.now - each.at < LOG_SECONDS or wakes - each.wakes < LOG_WAKES:
                waiting.append(each)
                continue
            raise SafetyViolation(each.complaint)
        self._early = waiting

    look_at_all = look


def _led_epoch(node: Node) -> int | None:
    """Return the epoch in which a node leads the quorum; None for other nodes."""
    if node.metadata is None or not node.metadata.quorum.is_open:
        return None
    role = node.metadata.quorum.core.role
    return role.epoch if isinstance(role, Leader) else None


def _session_seconds(member: Member) -> float:
    configs = (member.config, member.newest_config, member.older_config)
    return min(int(each.explicit.get(SESSION_TIMEOUT, SESSION_TIMEOUT_MS)) for each in configs) / 1000
