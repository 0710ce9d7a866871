"""The channel from a node to the active controller, with its repetitions; the controller's answer on this node:
rights, quotas, long requests in turns. PORTED.

Theory of operation
-------------------
The quorum knows which node leads. If this node leads and its controller is active, it decides the request;
otherwise the request is sent to the leader's address. As in Kafka, a request is repeated until its deadline
in three cases: there is no leader, the answer is NOT_CONTROLLER, or the connection breaks. So a request may
be performed twice. For example, the controller may create a client's topic and fail before it answers. Then
the repeated request gets TOPIC_ALREADY_EXISTS.

**A new leader ends requests to the old leader.** The old leader may be paused or cut off, and never answer.
So when the quorum reports a new leader, requests that wait for the old leader fail here, and are sent to the
new leader.

**A client's answer waits for this node's image**, which may be behind the controller's image by a fetch or
two. The controller's answer has the offset of its image. The wait is at most `IMAGE_WAIT_SECONDS_MAX`. After
that time the client gets the answer although this node's metadata may not show the client's change yet. (A
broker of Kafka never waits.)

There are two kinds of requests: a broker's own (heartbeats, AlterPartition, ...), and clients' requests,
which are sent in an Envelope (`forward`). Requests that the quorum itself answers (DescribeQuorum, changes of
voters) are sent in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from odradek.env.ports import ConnectionLost, Event, Log
from odradek.metadata_quorum.controller.access.tokens import TokenRequest
from odradek.metadata_quorum.controller.doors import ControllerDoors
from odradek.metadata_quorum.controller.limits import (
    RECORDS_PER_REQUEST_MAX,
    batch_too_large,
    names_more_than,
)
from odradek.metadata_quorum.controller.parts import LongRequest
from odradek.metadata_quorum.envelope import NODE_ITSELF, Sender, carries_code, open_response, seal_request
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.process_watch import ProcessWatch
from odradek.metadata_quorum.quotas.token_bucket import wait_ms
from odradek.metadata_quorum.replica.describe_quorum import refuse_description
from odradek.metadata_quorum.replica.peers import Peer, PeerCall, PeerConnections
from odradek.metadata_quorum.state_machine import Deferred
from odradek.named_states import reached
from odradek.security.acls.authorizer import Rights
from odradek.security.doors.door import Admitted
from odradek.security.doors.token_doors import refuse_token_request, token_request_refused
from odradek.serving.long_work import Share
from odradek.serving.node_env import NodeEnv
from odradek.wire.api import api_versions, response_class
from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_quorum import DescribeQuorumRequest
from odradek.wire.structure import Message

__all__ = [
    "IMAGE_WAIT_SECONDS_MAX",
    "LONG_BYTES",
    "QUORUM_APIS",
    "TOKEN_APIS",
    "ControllerChannel",
    "Quorum",
    "Service",
    "answer_in_turns",
    "answer_request",
    "let_in",
    "let_token_request_in",
    "log_denials",
    "takes_long",
]

RETRY_SECONDS_MIN = 0.02
RETRY_SECONDS_MAX = 0.1
"""The longest pause between two attempts while the leader is inactive or out of reach. The pause doubles from
one attempt to the next, and ends early if the leadership changes.
"""

IMAGE_WAIT_SECONDS_MAX = 0.5
"""The longest time, in seconds, for which an answer waits until this node's image has the answer's offset."""

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
"""Requests that the quorum answers. The controller answers all others."""
TOKEN_APIS = frozenset(
    {ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN}
)
"""Requests about delegation tokens. The decision on such a request depends on the client's identity."""
VOTER_CHANGES = frozenset({ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UPDATE_RAFT_VOTER})
"""The APIs of the quorum that change the metadata log's set of voters."""
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
"""Requests that nodes send in their own name, never in an envelope."""

LONG_BYTES = 4_000
"""If the content of an envelope has more bytes than this, it is encoded and decoded in a worker. Such work takes a
millisecond or more.
"""
LONG_ELEMENTS = 400
"""If a message has more elements than this, it is copied in a worker."""


class Quorum(Protocol):
    """The part of `RaftQuorum` that the channel uses."""

    @property
    def leader_id(self) -> int | None: ...

    @property
    def leader_epoch(self) -> int: ...

    def leader_address(self) -> tuple[str, int] | None: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...

    def receive(self, request: Message, version: int, respond: Callable[[Message], None]) -> None: ...


class Service(Protocol):
    """The part of `MetadataService` that the channel uses."""

    @property
    def is_active(self) -> bool: ...

    @property
    def quorum(self) -> Quorum: ...

    @property
    def env(self) -> NodeEnv: ...

    @property
    def committed_image(self) -> MetadataImage: ...

    async def image_reaches(self, offset: int, deadline: float) -> bool: ...

    @property
    def doors(self) -> ControllerDoors | None: ...

    @property
    def watch(self) -> ProcessWatch | None: ...

    def charge_changes(self, sender: Sender, request: Message, version: int) -> Admitted | None: ...

    def charge_token_change(self, sender: Sender) -> float: ...

    def submit(
        self, request: Any, api_version: int | None = None, sender: Sender = NODE_ITSELF
    ) -> Deferred[Any, Any]: ...

    def change_voters(
        self, request: Message, version: int, respond: Callable[[Message], None], sender: Sender
    ) -> None: ...

    def long_request(self, request: Any) -> LongRequest | None: ...


def answer_request(
    service: Service,
    request: Message,
    version: int,
    respond: Callable[[Any], None],
    sender: Sender = NODE_ITSELF,
) -> None:
    """Answer a request by this node's quorum or controller.

    `respond` is called once with the response, possibly during this call. `sender` is for the audit log.
    """
    if request.API_KEY in VOTER_CHANGES:
        service.change_voters(request, version, respond, sender)
    elif request.API_KEY in QUORUM_APIS:
        service.quorum.receive(request, version, respond)
    else:
        deferred, merge = _submitted(service, request, version, sender)
        deferred.on_release(lambda response: respond(merge(response)))


def _submitted(
    service: Service, request: Any, version: int, sender: Sender
) -> tuple[Deferred[Any, Any], Callable[[Any], Any]]:
    """Decide the part of a request that the sender's quota allows. Returns the deferred answer to this part,
    and a function that adds the refused things to the answer.

    No other task runs between the charge and the decision, so both use the same state.
    """
    charged = None if sender is NODE_ITSELF else service.charge_changes(sender, request, version)
    if charged is None:
        return service.submit(request, version, sender), _as_it_is
    return service.submit(charged.request, version, sender), charged.merge


def let_in(service: Service, sender: Sender, request: Message, version: int) -> Admitted | Any:
    """Check a client's rights to a request for this node's controller.

    Returns the part of the request that these rights allow, or the refusal of the whole request. A node's
    requests to its own controller are always allowed.
    """
    if request.API_KEY in TOKEN_APIS:
        return let_token_request_in(service, sender, request, may_ask=not sender.by_token)
    if sender is NODE_ITSELF or service.doors is None:
        return Admitted(request, _as_it_is)
    return service.doors.admit(sender.principal, sender.client_address, request, version)


def let_token_request_in(
    service: Service, sender: Sender, request: Message, *, may_ask: bool
) -> Admitted | Any:
    """Convert a request about delegation tokens to the controller's form, or return its refusal.

    `may_ask` is false for a client that is not authenticated, and for a client that logged in with a token.
    """
    doors, principal = service.doors, sender.principal
    allows = (
        _allows_all if doors is None else Rights(doors.authorizer, principal, sender.client_address).allows
    )
    refused = token_request_refused(request, principal, may_ask=may_ask, allows=allows)
    if refused is not None:
        return refused
    seconds = service.charge_token_change(sender)
    if seconds > 0:
        refused = refuse_token_request(request, ErrorCode.THROTTLING_QUOTA_EXCEEDED, principal)
        refused.throttle_time_ms = wait_ms(seconds)
        return refused
    return Admitted(TokenRequest(request, principal, service.env.agreed_clock.moment()), _as_it_is)


def _allows_all(*_: object) -> bool:
    return True


def log_denials(service: Service) -> None:
    """Write the refusals of `let_in` to the audit log."""
    if service.doors is not None:
        service.doors.log_denials()


def _as_it_is(response: Any) -> Any:
    return response


def takes_long(service: Service, request: Message) -> bool:
    """True if answering this request takes long.

    The caller must then use `answer_in_turns` instead of `answer_request`.
    """
    return service.long_request(request) is not None or _describes_too_much(request)


def _describes_too_much(request: Message) -> bool:
    """True if a DescribeQuorum names very many partitions.

    Such a request is refused, because the quorum has only one partition.
    """
    return isinstance(request, DescribeQuorumRequest) and _is_long(request)


async def answer_in_turns(
    service: Service, share: Share, request: Message, version: int, sender: Sender = NODE_ITSELF
) -> Any:
    """Answer a long request by this node's quorum or controller, in turns with other long work.

    Returns the response.
    """
    if _describes_too_much(request):
        return await share.in_worker(refuse_description, request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    long = service.long_request(request)
    if long is not None:
        return await _answer_in_parts(service, share, long, version, sender)
    answered = service.env.event()
    answers: list[Any] = []

    def respond(response: Any) -> None:
        answers.append(response)
        answered.set()

    answer_request(service, request, version, respond, sender)
    await answered.wait()
    return answers[0]


def _is_long(message: Message) -> bool:
    return names_more_than(message, LONG_ELEMENTS)


def _through_codec(message: Message, version: int) -> Message:
    """Return a copy of a message, by encoding and decoding it."""
    return decode(type(message), version, encode(message, version))


async def _answer_in_parts(
    service: Service, share: Share, long: LongRequest, version: int, sender: Sender
) -> Any:
    """Answer a long request in parts.

    Returns the joined response, once everything that it shows is committed.
    """
    try:
        parts = await share.in_worker(long.split)
        if parts.trials:
            counts = await _submit_all(service, share, parts.trials, version, sender)
            if sum(count or 0 for count in counts) > RECORDS_PER_REQUEST_MAX:
                raise batch_too_large()
    except KafkaError as error:
        return await share.in_worker(long.refuse, error)
    responses = await _submit_all(service, share, parts.requests, version, sender)
    return await share.in_worker(parts.join, responses)


async def _submit_all(
    service: Service, share: Share, requests: Sequence[Any], version: int, sender: Sender
) -> list[Any]:
    """Submit requests one after the other, each in its own turn.

    Returns their responses when the state that each response shows is committed.
    """
    submitted = [await share.on_loop(_submitted, service, request, version, sender) for request in requests]
    for deferred, _ in submitted:
        await _wait_released(service, deferred)
    return [merge(deferred.response) for deferred, merge in submitted]


async def _wait_released(service: Service, deferred: Deferred[Any, Any]) -> None:
    if not deferred.is_released:
        released = service.env.event()
        deferred.on_release(lambda _: released.set())
        await released.wait()


class ControllerChannel:
    """A node's client for requests to the active controller. `node_id` is the id of this node."""

    def __init__(
        self, node_id: int, env: NodeEnv, service: Service, peers: PeerConnections, *, log: Log
    ) -> None:
        self._node_id = node_id
        self._env = env
        self._service = service
        self._peers = peers
        self._log = log
        self._changed: Event = env.event()
        self._calls: dict[PeerCall, tuple[str, int]] = {}
        """The requests under way, each with the host and port of its receiver."""
        self._retries = 0
        self._image_waits = self._image_waits_cut = 0
        service.quorum.on_change(self._on_change)

    @property
    def leader_epoch(self) -> int:
        return self._service.quorum.leader_epoch

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """Send a request in the broker's own name; see `PeerChannel.request`.

        A broken connection is retried. Raises `KafkaError` REQUEST_TIMED_OUT.
        """
        return await self._ask(message, deadline, version, NODE_ITSELF)

    async def forward(self, sender: Sender, message: Any, version: int, deadline: float) -> Any:
        """Send a request on behalf of a client.

        Raises `KafkaError`: REQUEST_TIMED_OUT, or the error of the envelope.
        """
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
                reached("controller.none_to_ask")
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "no controller became active before the deadline of the request",
                )
            with clock.timeout_at(min(deadline, now + pause)):
                await changed.wait()
            pause = RETRY_SECONDS_MIN if changed.is_set() else min(2 * pause, RETRY_SECONDS_MAX)

    async def _ask_once(self, message: Any, deadline: float, version: int, sender: Sender) -> Any:
        """Send a request to the present leader once.

        Returns the response, or None if no active controller has answered. Raises `KafkaError`,
        `ConnectionLost`.
        """
        service = self._service
        if service.quorum.leader_id == self._node_id:
            return await self._ask_here(message, deadline, version, sender) if service.is_active else None
        address = service.quorum.leader_address()
        if address is None:
            return None
        if message.API_KEY in SENT_PLAIN or (sender is NODE_ITSELF and service.doors is not None):
            # The controller must check this node's own rights, so the request is not sent in an envelope for
            # a client.
            # A heartbeat has a connection of its own, as in Kafka. Behind a request that takes long it would come too
            # late, and its time limit would end the connection for both.
            lane = "heartbeats" if message.API_KEY == ApiKey.BROKER_HEARTBEAT else ""
            peer = self._peers.channel(*address, lane)
            response = await self._ask_there(peer, message, version, deadline)
            return None if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER else response
        # Clients' requests have a connection of their own. A large decision takes long. Heartbeats on the
        # same connection would have to wait for it, and might lose the connection.
        peer = self._peers.channel(*address, "clients")
        envelope = await self._piece(_is_long(message), seal_request, message, version, sender)
        sealed = await self._ask_there(peer, envelope, 0, deadline)
        is_long = len(sealed.response_data or b"") > LONG_BYTES
        response = await self._piece(is_long, open_response, sealed, message.API_KEY, version)
        if sender is not NODE_ITSELF:
            await self._image_of(sealed.image_offset, deadline)
        return response

    async def _image_of(self, offset: int, deadline: float) -> None:
        """Wait until this node's image includes the record at `offset`, for at most `IMAGE_WAIT_SECONDS_MAX`."""
        if self._service.committed_image.offset >= offset:
            return
        self._image_waits += 1
        until = min(deadline, self._env.clock.monotonic() + IMAGE_WAIT_SECONDS_MAX)
        if not await self._service.image_reaches(offset, until):
            self._image_waits_cut += 1

    async def _ask_here(self, message: Any, deadline: float, version: int, sender: Sender) -> Any:
        """Let this node's controller answer a request.

        The message is copied, so that no object is shared. Returns None if the controller has resigned
        meanwhile.
        """
        admitted = await self._piece(_is_long(message), let_in, self._service, sender, message, version)
        log_denials(self._service)
        if not isinstance(admitted, Admitted):
            return admitted
        message = admitted.request
        share = self._env.long_work.begin()
        response: Any = None
        with self._env.clock.timeout_at(deadline):
            if _is_long(message):
                copied = await share.in_worker(_through_codec, message, version)
            else:
                copied = copy.deepcopy(message)
            response = await answer_in_turns(self._service, share, copied, version, sender)
        if response is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        if not isinstance(response, response_class(message.API_KEY)):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        # If the controller has resigned meanwhile, the response has the error NOT_CONTROLLER.
        if not self._service.is_active and await self._piece(
            _is_long(response), carries_code, response, version, ErrorCode.NOT_CONTROLLER
        ):
            reached("controller.resigned_while_answering")
            return None
        return admitted.merge(response)

    async def _piece(self, is_long: bool, function: Callable[..., Any], *args: Any) -> Any:
        return await self._env.long_work.begin().in_worker(function, *args) if is_long else function(*args)

    async def _ask_there(self, peer: Peer, message: Message, version: int, deadline: float) -> Any:
        call = peer.send(message, version)
        self._calls[call] = (peer.host, peer.port)
        try:
            return await peer.answer(call, deadline)
        finally:
            del self._calls[call]

    def _on_change(self) -> None:
        """Called when the leadership has changed: wake requests that look for a leader, and fail those that
        wait for the old leader.
        """
        changed, self._changed = self._changed, self._env.event()
        changed.set()
        quorum = self._service.quorum
        address = quorum.leader_address()
        if quorum.leader_id is None or address is None:
            return
        for call, asked in list(self._calls.items()):
            if asked != address:
                call.fail(ConnectionLost("another controller has become the active controller"))

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: requests under way, retries, waits for this node's image, and waits
        that reached their time limit.
        """
        return {
            "waiting": len(self._calls),
            "retries": self._retries,
            "image_waits": self._image_waits,
            "image_waits_cut": self._image_waits_cut,
        }
