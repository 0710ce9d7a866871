"""Simulated network between the replicas of the metadata quorum: messages are late, lost, duplicated, or reordered.
PORTED.

A message is an object of `odradek.wire.messages`, which is not encoded. Between two replicas there is one connection
at a time, which delivers messages in order. When the connection breaks, all its open requests fail, but messages that
were already sent may still arrive.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

import attrs

from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.metadata_quorum.replica.peers import NeverSent
from odradek.wire.api import api_versions
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from sim.alone.quorum.stepping import StepClock, StepEvent, Steps

__all__ = ["Channels", "Network", "NetworkPlan"]

TINY_SECONDS = 1e-6


class Machine(Protocol):
    """The part of a replica that the network uses."""

    @property
    def name(self) -> str:
        """The name of the machine. A copy of a replica runs on another machine, but with the same `node_id`."""

    @property
    def node_id(self) -> int: ...

    @property
    def life(self) -> int:
        """How many times the machine's process was started, including the present start."""

    @property
    def lives(self) -> bool: ...

    @property
    def has_power(self) -> bool:
        """True while the machine has power: then its kernel refuses connections when no process listens."""

    @property
    def is_listening(self) -> bool: ...

    def receive(self, message: Any, version: int, respond: Callable[[Any], None]) -> None:
        """Handle a request; `respond` is called with its answer, at once or later."""


@attrs.frozen
class NetworkPlan:
    """How messages travel: the shortest and the longest delay in seconds, and the probabilities of a long delay, of
    loss and of duplication.
    """

    seconds: tuple[float, float] = (0.001, 0.02)
    late_probability: float = 0.0
    """The probability that a message takes up to one second."""
    lost_probability: float = 0.0
    twice_probability: float = 0.0


class Nowhere:
    """The machine behind an address without a listener: it refuses connections."""

    name = "nowhere"
    node_id = -1
    life = 0
    lives = is_listening = False
    has_power = True

    def receive(self, message: Any, version: int, respond: Callable[[Any], None]) -> None:
        raise AssertionError("nothing arrives here")


@attrs.define(eq=False)
class _Connection:
    """A connection from one process of a node to another node."""

    sender: Machine
    life: int
    receiver: Machine
    questions: dict[_Question, None] = attrs.Factory(dict)
    there_at: float = 0.0
    """The virtual time in seconds at which the connection's last request arrives. Later requests arrive after that
    time.
    """
    back_at: float = 0.0
    is_broken: bool = False


@attrs.define(eq=False)
class _Question:
    """A request, with its answer or its error once either has arrived."""

    connection: _Connection
    message: Any
    done: StepEvent
    answer: Any = None
    error: Exception | None = None


class Network:
    """The simulated network. `nodes` has the nodes by host name."""

    def __init__(self, steps: Steps, random: Random, plan: NetworkPlan) -> None:
        self.steps = steps
        self._random = random
        self.plan = plan
        self.nodes: dict[str, Machine] = {}
        self.cut_off: tuple[int, ...] = ()
        """Ids of nodes that reach only each other."""
        self._nowhere = Nowhere()
        self._connections: dict[tuple[str, str], _Connection] = {}
        self.on_answer: Callable[[int, Any, Any], None] = lambda node_id, request, response: None
        """Called with (node id, request, response) when a node sends an answer."""

    # -- sending ------------------------------------------------------------------------------------------------------

    def ask(self, sender: Machine, host: str, message: Any) -> _Question:
        """Send a request. Return an object on which the answer or the error will be set."""
        receiver = self.nodes.get(host, self._nowhere)
        key = (sender.name, receiver.name)
        connection = self._connections.get(key)
        if connection is None or connection.is_broken or connection.life != sender.life:
            connection = self._connections[key] = _Connection(sender, sender.life, receiver)
        question = _Question(connection, message, StepEvent(self.steps))
        connection.questions[question] = None
        if self._is_lost(sender, receiver):
            if self._random.random() < 0.5:
                self.steps.at(self.steps.now + self._delay(), lambda: self.end(connection))
            return question
        connection.there_at = max(self.steps.now + self._delay(), connection.there_at + TINY_SECONDS)
        self.steps.at(connection.there_at, lambda: self._arrive(question))
        if self._random.random() < self.plan.twice_probability:
            again = copy.deepcopy(message)
            self.steps.at(connection.there_at + self._delay(), lambda: self._arrive_again(question, again))
        return question

    def _delay(self) -> float:
        random, plan = self._random, self.plan
        if random.random() < plan.late_probability:
            return random.random()
        return random.uniform(*plan.seconds)

    def _is_cut(self, here: Machine, there: Machine) -> bool:
        return (here.node_id in self.cut_off) != (there.node_id in self.cut_off)

    def _is_lost(self, here: Machine, there: Machine) -> bool:
        return self._is_cut(here, there) or self._random.random() < self.plan.lost_probability

    def end(self, connection: _Connection, error: type[ConnectionLost] = ConnectionLost) -> None:
        """Break a connection: its open requests fail with `error`."""
        connection.is_broken = True
        questions, connection.questions = connection.questions, {}
        for question in questions:
            self._fail(question, error("closed"))

    def break_some(self) -> None:
        """Break a random connection. Its messages may still arrive, even after messages of the next connection."""
        known = [each for each in self._connections.values() if not each.is_broken]
        if known:
            self.end(self._random.choice(known))

    def node_died(self, node: Machine, *, power: bool) -> None:
        """Break the connections to a killed process. If the machine has lost power, they stay open."""
        for connection in list(self._connections.values()):
            if connection.receiver is node and not power:
                self.steps.at(self.steps.now + self._delay(), partial(self.end, connection))

    # -- arriving -----------------------------------------------------------------------------------------------------

    def _arrive(self, question: _Question) -> None:
        connection = question.connection
        receiver = connection.receiver
        if self._is_cut(connection.sender, receiver):
            return
        if not receiver.is_listening:
            if receiver.has_power:
                self.end(connection, NeverSent)
            return
        self._deliver(receiver, question.message, lambda response: self._answer(question, response))

    def _arrive_again(self, question: _Question, message: Any) -> None:
        receiver = question.connection.receiver
        if receiver.is_listening and not self._is_cut(question.connection.sender, receiver):
            self._deliver(receiver, message, lambda response: None)

    def _deliver(self, receiver: Machine, message: Any, respond: Callable[[Any], None]) -> None:
        life = receiver.life
        if isinstance(message, ApiVersionsRequest):
            features = [SupportedFeatureKey(name, *levels) for name, levels in SUPPORTED_FEATURES.items()]
            respond(ApiVersionsResponse(supported_features=features))
            return

        def answered(response: Any) -> None:
            if receiver.lives and receiver.life == life:
                self.on_answer(receiver.node_id, message, response)
                respond(response)

        receiver.receive(message, api_versions(message.API_KEY)[1], answered)

    def _answer(self, question: _Question, response: Any) -> None:
        connection = question.connection
        if connection.is_broken or self._is_lost(connection.receiver, connection.sender):
            return
        connection.back_at = max(self.steps.now + self._delay(), connection.back_at + TINY_SECONDS)

        def arrive() -> None:
            if question in connection.questions:
                del connection.questions[question]
                question.answer = response
                question.done.set()

        self.steps.at(connection.back_at, arrive)

    def _fail(self, question: _Question, error: Exception) -> None:
        question.error = error
        question.done.set()

    def drop(self, question: _Question) -> None:
        """Stop waiting for the answer to a request."""
        question.connection.questions.pop(question, None)


class Channels:
    """`odradek.metadata_quorum.ports.PeerChannels` for one process of a node."""

    def __init__(self, network: Network, node: Machine) -> None:
        self._network = network
        self._node = node

    def channel(self, host: str, port: int, *, address: str | None = None) -> _Channel:
        """Return a channel to this host; `port` and `address` are ignored."""
        return _Channel(self._network, self._node, host)

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return the host's only address: its name."""
        return (host,)

    def close(self) -> None:
        """Do nothing: a schedule kills its processes instead of closing them."""


class _Channel:
    """`odradek.metadata_quorum.ports.PeerChannel` to one host."""

    def __init__(self, network: Network, node: Machine, host: str) -> None:
        self._network = network
        self._node = node
        self._host = host
        self._clock = StepClock(network.steps)

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """Send a request and return its answer (`PeerChannel.request`). Raises `KafkaError` REQUEST_TIMED_OUT after
        `deadline`.
        """
        network = self._network
        question = network.ask(self._node, self._host, message)
        with self._clock.timeout_at(deadline):
            await question.done.wait()
        network.drop(question)
        if question.error is not None:
            raise question.error
        if question.answer is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self._host} did not answer before the deadline")
        return question.answer
