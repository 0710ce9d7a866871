"""How a node asks the active controller, wherever that is. PORTED.

Theory of operation
-------------------
The quorum knows who leads. Is it this node and its controller active, a request is decided here; otherwise it goes to
the leader's address. As in Kafka a request is asked again, until its deadline, when there is no leader yet, the one
asked says NOT_CONTROLLER, or the connection breaks: what a broker asks may be done twice, and a client whose topic
was created just before the controller died learns TOPIC_ALREADY_EXISTS.

**A new leader ends the questions to the old one.** It may be paused or cut off, and never answer; the change of
leadership, which the quorum tells, fails what waits for it, and that is asked anew.

Two kinds of requests: a broker's own (heartbeats, AlterPartition, ...), and those of clients, which go in an Envelope
(`forward`). One that may be decided by the quorum itself (DescribeQuorum, changes of voters) takes the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

from metadata_quorum.envelope import NODE_ITSELF, Sender, open_response, seal_request, tells_of
from metadata_quorum.peers import Peer, PeerCall, PeerConnections
from metadata_quorum.state_machine import Deferred
from odradek.env.ports import ConnectionLost, Env, Event
from wire.api import api_versions, response_class
from wire.api_keys import ApiKey
from wire.errors import ErrorCode, KafkaError
from wire.structure import Message

__all__ = ["QUORUM_APIS", "ControllerChannel", "Quorum", "Service", "answer_request"]

RETRY_SECONDS_MIN = 0.02
RETRY_SECONDS_MAX = 0.1
"""Between two attempts while the leader is not active yet, or cannot be reached; a change of leadership ends the pause.
It doubles from one attempt to the next."""

QUORUM_APIS = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UPDATE_RAFT_VOTER,
    }
)
"""What the quorum answers itself; everything else is the controller's."""
SENT_PLAIN = frozenset(
    {
        ApiKey.ALTER_PARTITION,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.CONTROLLER_REGISTRATION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.UPDATE_RAFT_VOTER,
        ApiKey.FETCH,
        ApiKey.FETCH_SNAPSHOT,
    }
)
"""What nodes ask in their own name: never in an envelope."""


class Quorum(Protocol):
    """What is asked of `RaftQuorum`."""

    @property
    def leader_id(self) -> int | None: ...

    def leader_address(self) -> tuple[str, int] | None: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...

    def receive(self, request: Message, version: int, respond: Callable[[Message], None]) -> None: ...


class Service(Protocol):
    """What is asked of `MetadataService`."""

    @property
    def is_active(self) -> bool: ...

    @property
    def quorum(self) -> Quorum: ...

    def submit(self, request: Any, api_version: int | None = None) -> Deferred: ...


def answer_request(service: Service, request: Message, version: int, respond: Callable[[Any], None]) -> None:
    """Let this node's quorum or controller answer; `respond` is called once, maybe before this returns."""
    if request.API_KEY in QUORUM_APIS:
        service.quorum.receive(request, version, respond)
    else:
        service.submit(request, version).on_release(respond)


class ControllerChannel:
    """See the module. `node_id` is this node's."""

    def __init__(self, node_id: int, env: Env, service: Service, peers: PeerConnections, *, log: Any) -> None:
        self._node_id = node_id
        self._env = env
        self._service = service
        self._peers = peers
        self._log = log
        self._changed: Event = env.event()
        self._calls: dict[PeerCall, tuple[str, int]] = {}
        """Questions under way, and whom they went to."""
        self._retries = 0
        service.quorum.on_change(self._on_change)

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """See `PeerChannel.request`. Raises `KafkaError` REQUEST_TIMED_OUT; a broken connection is tried again."""
        return await self._ask(message, deadline, version, NODE_ITSELF)

    async def forward(self, sender: Sender, message: Any, version: int, deadline: float) -> Any:
        """Ask in the name of a client. Raises `KafkaError`: REQUEST_TIMED_OUT, or what the envelope came back with."""
        return await self._ask(message, deadline, version, sender)

    async def _ask(self, message: Any, deadline: float, version: int | None, sender: Sender) -> Any:
        clock = self._env.clock
        if version is None:
            version = api_versions(message.API_KEY)[1]
        pause = RETRY_SECONDS_MIN
        while True:
            changed = self._changed
            try:
                response = await self._ask_once(message, deadline, version, sender)
            except (ConnectionLost, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                response = None
            if response is not None:
                return response
            self._retries += 1
            now = clock.monotonic()
            if now >= deadline:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "there was no active controller to ask")
            with clock.timeout_at(min(deadline, now + pause)):
                await changed.wait()
            pause = RETRY_SECONDS_MIN if changed.is_set() else min(2 * pause, RETRY_SECONDS_MAX)

    async def _ask_once(self, message: Any, deadline: float, version: int, sender: Sender) -> Any:
        """The answer, or None where nobody had one. Raises `KafkaError`, `ConnectionLost`."""
        service = self._service
        if service.quorum.leader_id == self._node_id:
            return await self._ask_here(message, deadline, version) if service.is_active else None
        address = service.quorum.leader_address()
        if address is None:
            return None
        if message.API_KEY in SENT_PLAIN:
            peer = self._peers.channel(*address)
            response = await self._ask_there(peer, message, version, deadline)
            return None if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER else response
        # A large decision takes its time; heartbeats must neither wait behind it nor cost it the connection.
        peer = self._peers.channel(*address, "clients")
        envelope = seal_request(message, version, sender)
        sealed = await self._ask_there(peer, envelope, 0, deadline)
        return open_response(sealed, message.API_KEY, version)

    async def _ask_here(self, message: Any, deadline: float, version: int) -> Any:
        """The message is copied, so both sides keep what is theirs."""
        answered = self._env.event()
        answers: list[Any] = []

        def respond(response: Any) -> None:
            answers.append(response)
            answered.set()

        answer_request(self._service, copy.deepcopy(message), version, respond)
        with self._env.clock.timeout_at(deadline):
            await answered.wait()
        if not answers:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        response = answers[0]
        if not isinstance(response, response_class(message.API_KEY)):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        # Only a controller that resigned meanwhile has said so.
        if not self._service.is_active and tells_of(response, version, ErrorCode.NOT_CONTROLLER):
            return None
        return response

    async def _ask_there(self, peer: Peer, message: Message, version: int, deadline: float) -> Any:
        call = peer.send(message, version)
        self._calls[call] = (peer.host, peer.port)
        try:
            return await peer.answer(call, deadline)
        finally:
            del self._calls[call]

    def _on_change(self) -> None:
        """Leadership moved: whoever waits looks again."""
        changed, self._changed = self._changed, self._env.event()
        changed.set()
        quorum = self._service.quorum
        address = quorum.leader_address()
        if quorum.leader_id is None or address is None:
            return
        for call, asked in list(self._calls.items()):
            if asked != address:
                call.fail(ConnectionLost("another controller is active now"))

    def statistics(self) -> dict[str, int]:
        """Questions under way, attempts that had to be made again."""
        return {"waiting": len(self._calls), "retries": self._retries}
