"""Notices at once that the process of a broker has ended, and lets the controller fence the broker. PORTED.

Theory of operation
-------------------
When a process ends, its host closes its connections and refuses new ones. So a broker is suspected when its connection
to the active controller ends. It is also suspected when a new controller becomes active, or when its heartbeats are
late (`odradek.broker.suspicion.ms`). The controller then tries to connect to the listeners of the broker. If the host
refuses, no process serves there. The controller fences the broker, and other replicas lead its partitions. Without
this, the broker's session would have to end first (9 s). Kafka waits for the session.

* It is safe to fence a living broker by mistake. Epochs keep it from serving as a leader. Its next heartbeat brings it
  back.
* A refusal counts only if this node has connected to the same incarnation before. Some networks refuse all
  connections from controllers to brokers.
* A listener that accepts connections proves nothing: the process may be stopped, or another program may have the
  port. A silent host proves as little. In these cases the session decides.
* The fencing names the epoch of the dead incarnation. If the broker has registered again in the meantime, nothing
  happens. The same holds if a heartbeat has come since the suspicion began.

Every controller connects once to each new incarnation, so that it knows which brokers it can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Protocol

from odradek.env.ports import ConnectionLost, ConnectionRefused, Log, TaskGroup
from odradek.metadata_quorum.controller.brokers.broker_registration import FenceDeadBroker
from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from odradek.metadata_quorum.image.metadata_image import BrokerImage, MetadataImage
from odradek.named_states import reached
from odradek.serving.contract import Context
from odradek.serving.node_env import NodeEnv

CONNECT_SECONDS_MAX = 0.5
"""The longest wait for one attempt to connect. A host on the same network answers within milliseconds."""
PROBE_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.3)
"""The pauses between the attempts of one suspicion. The host may close the listener of a dead process a moment after
its connections.
"""
CONTACT_PAUSES_SECONDS = (0.0, 0.5, 2.0, 8.0, 30.0)
"""The pauses before the attempts to reach a new incarnation."""

LOOKS_PER_SUSPICION = 4
"""The number of looks for late heartbeats in the time after which a heartbeat is late."""


class _Answer(Enum):
    """The outcome of an attempt to connect to the listeners of a broker."""

    ACCEPTED = auto()
    REFUSED = auto()
    SILENT = auto()


class Watched(Protocol):
    """The part of the metadata service that the watch uses."""

    decided: DecisionFigures

    @property
    def is_active(self) -> bool: ...

    @property
    def committed_image(self) -> MetadataImage: ...

    def silent_brokers(self, since_ms: int) -> list[BrokerImage]: ...

    def fence_dead(self, request: FenceDeadBroker, told: Callable[[list[int] | None], None]) -> None: ...


class ProcessWatch:
    """The watch of one controller over the processes of all brokers but its own."""

    def __init__(self, env: NodeEnv, watched: Watched, logger: Log, node_id: int, suspicion_ms: int) -> None:
        """`suspicion_ms` is the age of a broker's last heartbeat at which the broker is suspected."""
        self._env = env
        self._watched = watched
        self._logger = logger
        self._node_id = node_id
        self._suspicion_ms = suspicion_ms
        self._tasks: TaskGroup | None = None
        self._brokers: object = None
        """The brokers of the last image that was looked at. Images without a change of brokers share this object."""
        self._met: dict[int, tuple[int, bool]] = {}
        """For each broker the epoch of its newest incarnation, and whether this node has connected to it."""
        self._connections: dict[int, Context] = {}
        """The connection on which each broker has sent its last heartbeat."""
        self._suspected: set[int] = set()
        """The brokers whose listeners are being tried."""

    async def run(self, tasks: TaskGroup) -> None:
        """Watch all brokers until the node ends. The attempts to connect are tasks of `tasks`."""
        self._tasks = tasks
        self.look(self._watched.committed_image)
        clock, pause = self._env.clock, self._suspicion_ms / LOOKS_PER_SUSPICION / 1000
        while True:
            await clock.sleep_until(clock.monotonic() + pause)
            if self._watched.is_active:
                since_ms = self._now_ms() - self._suspicion_ms
                for broker in self._watched.silent_brokers(since_ms):
                    self.suspect(broker.broker_id, broker.epoch)

    def _now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    def look(self, image: MetadataImage, _delta: object = None) -> None:
        """Get to know the new incarnations of an image. Called with each committed image."""
        if self._tasks is None or image.brokers is self._brokers:
            return
        self._brokers = image.brokers
        for broker_id in self._met.keys() - image.brokers.keys():
            del self._met[broker_id]
        for broker_id, broker in image.brokers.items():
            known = self._met.get(broker_id)
            if broker_id != self._node_id and (known is None or known[0] != broker.epoch):
                self._met[broker_id] = broker.epoch, False
                self._tasks.start_soon(self._meet, broker, name=f"first contact with broker {broker_id}")

    async def _meet(self, broker: BrokerImage) -> None:
        """Connect once to a new incarnation. Give up after some attempts."""
        clock = self._env.clock
        for pause in CONTACT_PAUSES_SECONDS:
            await clock.sleep_until(clock.monotonic() + pause)
            if self._met.get(broker.broker_id) != (broker.epoch, False):
                return
            if await self._try(broker) is _Answer.ACCEPTED:
                if self._met.get(broker.broker_id) == (broker.epoch, False):
                    self._met[broker.broker_id] = broker.epoch, True
                return

    def heard(self, context: Context, broker_id: int, broker_epoch: int) -> None:
        """Note the connection of a heartbeat. When it ends, the broker is suspected."""
        own, broker = context.own, self._watched.committed_image.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            return
        if self._connections.get(broker_id) is not own:
            self._connections[broker_id] = own
            own.on_end = partial(self._ended, own, broker_id, broker_epoch)

    def _ended(self, connection: Context, broker_id: int, broker_epoch: int) -> None:
        if self._connections.get(broker_id) is connection:
            del self._connections[broker_id]
            self.suspect(broker_id, broker_epoch)

    def suspect_all(self) -> None:
        """Try the listeners of all unfenced brokers. Called when this controller becomes active."""
        for broker_id, broker in self._watched.committed_image.brokers.items():
            self.suspect(broker_id, broker.epoch)

    def suspect(self, broker_id: int, broker_epoch: int) -> None:
        """Try the listeners of a broker, if it is unfenced, has this epoch, and can be reached from here."""
        if self._tasks is None or broker_id in self._suspected:
            return
        if self._is_reachable(broker_id, broker_epoch):
            self._suspected.add(broker_id)
            broker = self._watched.committed_image.brokers[broker_id]
            self._tasks.start_soon(
                self._judge, broker, self._now_ms(), name=f"suspicion of broker {broker_id}"
            )

    def _is_reachable(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self._watched.committed_image.brokers.get(broker_id)
        return (
            self._watched.is_active
            and broker is not None
            and not broker.fenced
            and broker.epoch == broker_epoch
            and self._met.get(broker_id) == (broker_epoch, True)
        )

    async def _judge(self, broker: BrokerImage, since_ms: int) -> None:
        """Try the listeners of a suspected broker, and fence the broker if its host refuses."""
        clock = self._env.clock
        try:
            answer = await self._try(broker)
            for pause in PROBE_PAUSES_SECONDS:
                if answer is not _Answer.ACCEPTED:
                    break
                await clock.sleep_until(clock.monotonic() + pause)
                answer = await self._try(broker)
        finally:
            self._suspected.discard(broker.broker_id)
        if answer is _Answer.REFUSED and self._is_reachable(broker.broker_id, broker.epoch):
            reached("controller.dead_process_noticed")
            request = FenceDeadBroker(broker.broker_id, broker.epoch, since_ms)
            self._watched.fence_dead(request, partial(self._fenced, broker.epoch))

    def _fenced(self, broker_epoch: int, broker_ids: list[int] | None) -> None:
        for broker_id in broker_ids or ():
            self._watched.decided.fenced_at_death += 1
            self._logger.warning(
                "broker.found_dead",
                broker=broker_id,
                broker_epoch=broker_epoch,
                effect="fenced, because its host refuses connections",
            )

    async def _try(self, broker: BrokerImage) -> _Answer:
        """Connect to the listeners of a broker in turn, until one of them accepts."""
        answer = _Answer.SILENT
        clock, network = self._env.clock, self._env.network
        for listener in broker.listeners:
            try:
                with clock.timeout_at(clock.monotonic() + CONNECT_SECONDS_MAX):
                    connection = await network.connect(listener.host, listener.port)
                    connection.close()
                    return _Answer.ACCEPTED
            except ConnectionRefused:
                answer = _Answer.REFUSED
            except ConnectionLost:
                continue
        return answer
