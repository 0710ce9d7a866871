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
* A controller connects once to each new incarnation of a broker, and remembers the addresses that have accepted
  (`_Contact`). Only these addresses are tried later, and all of them must refuse. Some networks refuse all connections
  from controllers to brokers, and an advertised name may lead to another host.
* A listener that accepts connections proves nothing: the process may be stopped, or another program may have the
  port. A silent host proves as little. In these cases a second voice is needed. This is another broker whose exchange with
  the suspect has been silent for as long (`second_voices`). Without it, the session decides.
* The connections carry no bytes. Their networks are those without encryption and logins.
* Processes may die together. A broker that was found dead waits for the other suspicions, for at most
  `BURST_SECONDS_MAX`, and all dead brokers are fenced in one decision (`FenceDeadBrokers`).
* The decision names the epochs of the dead incarnations. If a broker has registered again in the meantime, nothing
  happens to it. The same holds if a heartbeat has come since the suspicion began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Protocol, TypeAlias

import attrs

from odradek.env.ports import ConnectionLost, ConnectionRefused, Log, Network, TaskGroup
from odradek.metadata_quorum.controller.brokers.broker_registration import DeadBroker, FenceDeadBrokers
from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from odradek.metadata_quorum.image.metadata_image import BrokerImage, MetadataImage
from odradek.metadata_quorum.second_voices import SecondVoices
from odradek.named_states import reached
from odradek.serving.contract import Context
from odradek.serving.node_env import NodeEnv
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest

CONNECT_SECONDS_MAX = 0.5
"""The longest wait for one attempt to connect. A host on the same network answers within milliseconds."""
CLOSING_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.3)
"""The pauses between the attempts after the end of a connection. The host may close the listener of a dead process a
moment later than its connections.
"""
CONTACT_PAUSES_SECONDS = (0.0, 0.5, 2.0, 8.0, 30.0)
"""The pauses before the attempts to reach a new incarnation. The last pause is repeated."""
BURST_SECONDS_MAX = 0.5
COMPARISONS_PER_SUSPICION = 30
"""The number of comparisons between two voices in the time after which a heartbeat is late."""
LOOKS_PER_SUSPICION = 4
"""The number of looks for late heartbeats in the time after which a heartbeat is late."""

_Address: TypeAlias = tuple[str, int, str]
"""An address of a listener: advertised host, port, IP address."""


@attrs.define
class _Contact:
    """What a controller knows about one incarnation of a broker."""

    epoch: int
    addresses: tuple[_Address, ...] = ()
    """The addresses that have accepted a connection of this controller; empty before the first contact."""
    judged_ms: int = -1 << 62
    """The monotonic time in milliseconds at which the last suspicion began."""


class Watched(Protocol):
    """The part of the metadata service that the watch uses."""

    decided: DecisionFigures

    @property
    def is_active(self) -> bool: ...

    @property
    def committed_image(self) -> MetadataImage: ...

    def silent_brokers(self, since_ms: int) -> list[BrokerImage]: ...

    def fence_dead(self, request: FenceDeadBrokers, told: Callable[[list[int] | None], None]) -> None: ...


class ProcessWatch:
    """The watch of one controller over the processes of all brokers but its own."""

    def __init__(
        self, env: NodeEnv, network: Network, watched: Watched, logger: Log, node_id: int, suspicion_ms: int
    ) -> None:
        """`network` makes connections without encryption and logins. `suspicion_ms` is the age of a broker's last
        heartbeat at which the broker is suspected.
        """
        self._env = env
        self._network = network
        self._watched = watched
        self._logger = logger
        self._node_id = node_id
        self._suspicion_ms = suspicion_ms
        self._tasks: TaskGroup | None = None
        self._brokers: object = None
        """The brokers of the last image that was looked at. Images without a change of brokers share this object."""
        self._contacts: dict[int, _Contact] = {}
        self._connections: dict[int, tuple[Context, int]] = {}
        """For each broker the connection on which it has sent its last heartbeat, and the epoch in it."""
        self._suspected: set[tuple[int, int]] = set()
        """Broker and epoch of each suspicion under way."""
        self._voices = SecondVoices(suspicion_ms)
        self._compares = False
        """True while a task compares second voices with this controller's own silence."""
        self._dead: dict[int, DeadBroker] = {}
        """The brokers that were found dead, and wait for the other suspicions."""

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
                    contact = self._contacts.get(broker.broker_id)
                    if contact is not None and contact.judged_ms <= since_ms:
                        self._suspect(broker.broker_id, broker.epoch)

    def _now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    # -- first contact

    def look(self, image: MetadataImage, _delta: object = None) -> None:
        """Get to know the new incarnations of an image. Called with each committed image."""
        if self._tasks is None or image.brokers is self._brokers:
            return
        self._brokers = image.brokers
        for known in (self._contacts, self._connections):
            for broker_id in known.keys() - image.brokers.keys():
                del known[broker_id]
        for broker_id, broker in image.brokers.items():
            contact = self._contacts.get(broker_id)
            if broker_id != self._node_id and (contact is None or contact.epoch != broker.epoch):
                contact = self._contacts[broker_id] = _Contact(broker.epoch)
                self._tasks.start_soon(
                    self._meet, broker, contact, name=f"first contact with broker {broker_id}"
                )

    async def _meet(self, broker: BrokerImage, contact: _Contact) -> None:
        """Connect to a new incarnation, at intervals until some address of it accepts."""
        clock, attempt = self._env.clock, 0
        while not contact.addresses:
            pause = CONTACT_PAUSES_SECONDS[min(attempt, len(CONTACT_PAUSES_SECONDS) - 1)]
            attempt += 1
            await clock.sleep_until(clock.monotonic() + pause)
            if self._contacts.get(broker.broker_id) is not contact:
                return
            accepted = [
                (listener.host, listener.port, address)
                for listener in broker.listeners
                for address in await self._addresses_of(listener.host, listener.port)
                if await self._try((listener.host, listener.port, address)) is True
            ]
            # A loopback address may lead to a program on the controller's own host instead of the broker.
            elsewhere = [each for each in accepted if not _is_loopback(each[2])]
            contact.addresses = tuple(elsewhere or accepted)

    async def _addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        clock = self._env.clock
        found: tuple[str, ...] = ()
        with clock.timeout_at(clock.monotonic() + CONNECT_SECONDS_MAX):
            try:
                found = await self._network.addresses_of(host, port)
            except ConnectionLost:
                found = ()
        return found

    async def _try(self, address: _Address) -> bool | None:
        """Connect to an address, and close the connection. Return True if the host has accepted it, False if the
        host has refused it, and None if neither has happened in time.
        """
        clock, (host, port, ip) = self._env.clock, address
        answer: bool | None = None
        with clock.timeout_at(clock.monotonic() + CONNECT_SECONDS_MAX):
            try:
                connection = await self._network.connect(host, port, address=ip)
            except ConnectionRefused:
                answer = False
            except ConnectionLost:
                answer = None
            else:
                connection.close()
                answer = True
        return answer

    # -- suspicions

    def heard(self, context: Context, heartbeat: BrokerHeartbeatRequest) -> None:
        """Note the connection of a heartbeat, and whom it calls silent. When the connection ends, the broker is
        suspected.
        """
        broker_id, broker_epoch = heartbeat.broker_id, heartbeat.broker_epoch
        own, broker = context.own, self._watched.committed_image.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            return
        if self._voices.note(broker_id, broker_epoch, heartbeat.silent_brokers, self._now_ms()):
            self._compare_soon()
        if self._connections.get(broker_id) != (own, broker_epoch):
            self._connections[broker_id] = own, broker_epoch
            own.on_end = partial(self._ended, own)

    def _ended(self, connection: Context) -> None:
        of_brokers = [each for each, known in self._connections.items() if known[0] is connection]
        for broker_id in of_brokers:
            _, broker_epoch = self._connections.pop(broker_id)
            self._suspect(broker_id, broker_epoch, CLOSING_PAUSES_SECONDS)

    def suspect_all(self) -> None:
        """Try the listeners of all unfenced brokers. Called when this controller becomes active."""
        self._voices.forget()
        for broker_id, broker in self._watched.committed_image.brokers.items():
            self._suspect(broker_id, broker.epoch)

    # -- second voices

    def _compare_soon(self) -> None:
        if self._tasks is not None and not self._compares:
            self._compares = True
            self._tasks.start_soon(self._compare_voices, name="second voices against brokers")

    async def _compare_voices(self) -> None:
        """Fence each broker that is silent for this controller and for another broker. The own silence may still be too
        short, so look again until a suspicion must have ended.
        """
        clock, pause = self._env.clock, self._suspicion_ms / COMPARISONS_PER_SUSPICION / 1000
        try:
            for _ in range(COMPARISONS_PER_SUSPICION):
                if not self._watched.is_active or self._fence_silent():
                    return
                await clock.sleep_until(clock.monotonic() + pause)
        finally:
            self._compares = False

    def _fence_silent(self) -> bool:
        """Fence the brokers that are silent for two voices, in one decision. Return True if there were any."""
        now_ms, image = self._now_ms(), self._watched.committed_image
        missed = self._watched.silent_brokers(now_ms - self._suspicion_ms)
        others = [each for each in missed if each.broker_id != self._node_id]
        silent = self._voices.confirmed(others, image, now_ms)
        if silent:
            reached("controller.silence_has_second_voice")
            self._watched.fence_dead(FenceDeadBrokers(silent), partial(self._found_silent, silent))
        return bool(silent)

    # -- proofs

    def _suspect(self, broker_id: int, broker_epoch: int, pauses: tuple[float, ...] = ()) -> None:
        """Try the addresses of a broker, if it is unfenced, has this epoch, and has accepted connections before. The
        attempts are repeated after `pauses` while some address accepts.
        """
        contact = self._contacts.get(broker_id)
        if self._tasks is None or contact is None or not self._may_be_fenced(broker_id, contact):
            return
        if contact.epoch == broker_epoch and (broker_id, broker_epoch) not in self._suspected:
            self._suspected.add((broker_id, broker_epoch))
            contact.judged_ms = self._now_ms()
            self._tasks.start_soon(
                self._judge, broker_id, contact, pauses, name=f"suspicion of broker {broker_id}"
            )

    def _may_be_fenced(self, broker_id: int, contact: _Contact) -> bool:
        broker = self._watched.committed_image.brokers.get(broker_id)
        return (
            self._watched.is_active
            and broker is not None
            and not broker.fenced
            and broker.epoch == contact.epoch
            and self._contacts.get(broker_id) is contact
            and bool(contact.addresses)
        )

    async def _judge(self, broker_id: int, contact: _Contact, pauses: tuple[float, ...]) -> None:
        """Try the addresses of a suspected broker, and fence it if its host refuses at all of them."""
        clock, since_ms = self._env.clock, contact.judged_ms
        try:
            is_dead = await self._all_refuse(contact)
            for pause in pauses:
                if is_dead is not False:
                    break
                await clock.sleep_until(clock.monotonic() + pause)
                is_dead = await self._all_refuse(contact)
        finally:
            self._suspected.discard((broker_id, contact.epoch))
        if is_dead and self._may_be_fenced(broker_id, contact):
            self._dead[broker_id] = DeadBroker(broker_id, contact.epoch, since_ms)
            if self._suspected:
                reached("controller.dead_wait_for_other_suspicions")
                await clock.sleep_until(clock.monotonic() + BURST_SECONDS_MAX)
        if self._dead and (is_dead or not self._suspected):
            self._fence()

    async def _all_refuse(self, contact: _Contact) -> bool | None:
        """Try the addresses of a contact in turn. Return True if all refuse, False if one accepts, otherwise None."""
        refuses: bool | None = True
        for address in contact.addresses:
            accepted = await self._try(address)
            if accepted:
                return False
            if accepted is None:
                refuses = None
        return refuses

    def _fence(self) -> None:
        reached("controller.dead_process_noticed")
        dead, self._dead = self._dead, {}
        request = FenceDeadBrokers(tuple(dead[each] for each in sorted(dead)))
        self._watched.fence_dead(request, partial(self._found_dead, dead))

    def _found_dead(self, dead: dict[int, DeadBroker], broker_ids: list[int] | None) -> None:
        for broker_id in broker_ids or ():
            self._watched.decided.fenced_at_death += 1
            self._logger.warning(
                "broker.found_dead",
                broker=broker_id,
                broker_epoch=dead[broker_id].broker_epoch,
                reason="its host refuses connections",
            )

    def _found_silent(self, silent: tuple[DeadBroker, ...], broker_ids: list[int] | None) -> None:
        for each in silent:
            if each.broker_id in (broker_ids or ()):
                self._watched.decided.fenced_by_silence += 1
                self._logger.warning(
                    "broker.found_silent",
                    broker=each.broker_id,
                    broker_epoch=each.broker_epoch,
                    reason=f"neither the controller nor another broker has heard it for {self._suspicion_ms} ms",
                )


def _is_loopback(address: str) -> bool:
    """Return True for an IP address of the own host. A simulated host has its name as its address: return False."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
