"""In the simulator, a node sends requests to the active controller through its channel: envelopes, leader changes and
retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from odradek.env.ports import Env, TaskGroup
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.parts import PART_WEIGHT_MAX, LongRequest, long_request
from odradek.metadata_quorum.controller_channel import IMAGE_WAIT_SECONDS_MAX, ControllerChannel
from odradek.metadata_quorum.controller_table import DescribedController, build_controller_table
from odradek.metadata_quorum.envelope import Sender, open_request, open_response, seal_request, seal_response
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.replica.peers import PeerConnections
from odradek.metadata_quorum.replica.publisher import MetadataPublisher
from odradek.metadata_quorum.replica.turns import Turns
from odradek.metadata_quorum.state_machine import Deferred
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.wire.api import api_versions
from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode, KafkaError, MalformedMessage
from odradek.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from odradek.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from odradek.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from odradek.wire.messages.vote import VoteRequest
from odradek.wire.principal import decode_principal, encode_principal
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.virtual import serve_table

PORT = 9093
BROKER = 4
NODE_CONFIGS = BrokerConfigLayers({"log.retention.ms": "7000"})
NAMES = {1: "c1", 2: "c2", 3: "c3"}


class Quorum:
    """A stub of the quorum. The script sets its leader."""

    def __init__(self) -> None:
        self.leader_id: int | None = None
        self._callbacks: list[Callable[[], None]] = []

    def leader_address(self) -> tuple[str, int] | None:
        return None if self.leader_id is None else (NAMES[self.leader_id], PORT)

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def elect(self, leader_id: int | None) -> None:
        self.leader_id = leader_id
        for callback in self._callbacks:
            callback()

    def receive(self, request: Any, version: int, respond: Callable[[Any], None]) -> None:
        respond(DescribeQuorumResponse(error_message=f"version {version}"))


class Service:
    """A stub controller that answers with its node's id. While `silent` is true, its answers are kept in `held`."""

    def __init__(self, node_id: int, env: Env) -> None:
        self.node_id = node_id
        self.env = env
        self.quorum = Quorum()
        self.silent = False
        self.held: list[Deferred] = []
        self.asked: list[Any] = []
        self.on_asked: Callable[[Any], None] | None = None
        self.publisher = MetadataPublisher("", lambda *_: b"", Turns(env.event), env.workers)

    doors = None
    """No authorizer: every client may send every request."""
    watch = None
    """Nobody watches the processes of brokers."""

    @property
    def committed_image(self) -> MetadataImage:
        return self.publisher.image

    async def image_reaches(self, offset: int, deadline: float) -> bool:
        return await self.publisher.image_reaches(offset, self.env, deadline)

    def publish(self, offset: int) -> None:
        """Publish an image that ends at this offset."""
        self.publisher.publish(MetadataImage(offset=offset), MetadataDelta())

    @property
    def is_active(self) -> bool:
        return self.quorum.leader_id == self.node_id

    def long_request(self, request: Any) -> LongRequest | None:
        return long_request(MetadataImage(), request, ControllerSettings(), PART_WEIGHT_MAX)

    def charge_changes(self, sender: Any, request: Any, version: int) -> None:
        """Accept all changes: the stub has no quotas."""

    def charge_token_change(self, sender: Any) -> float:
        return 0.0

    def submit(self, request: Any, api_version: int | None = None, sender: Any = None) -> Deferred:
        self.asked.append(request)
        if self.on_asked is not None:
            self.on_asked(request)
        code = ErrorCode.NONE if self.is_active else ErrorCode.NOT_CONTROLLER
        response: Any = BrokerHeartbeatResponse(self.node_id, code)
        if isinstance(request, CreateTopicsRequest):
            topics = [CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics]
            response = CreateTopicsResponse(self.node_id, topics)
        if isinstance(request, AlterPartitionRequest):
            response = AlterPartitionResponse(self.node_id, code)
        deferred = Deferred(request, response, 0)
        if self.silent:
            self.held.append(deferred)
        else:
            deferred.release()
        return deferred


class Node:
    """A controller with its listener, and with its channel to the active controller."""

    def __init__(self, node_id: int, env: Env, tasks: TaskGroup) -> None:
        self.env = env
        self.service = Service(node_id, env)
        self.peers = PeerConnections(env, tasks, client_id=f"node-{node_id}", log=KeptLog())
        self.channel = ControllerChannel(node_id, env, self.service, self.peers, log=KeptLog())
        self.answers: list[Any] = []
        table = build_controller_table(
            self.service,
            MetadataImage,
            (CreateTopicsRequest, BrokerHeartbeatRequest, AlterPartitionRequest),
            DescribedController(node_id, NODE_CONFIGS, LogLevels(), env.long_work, MetadataImage),
        )
        serve_table(
            env,
            tasks,
            table,
            log=KeptLog(),
            port=PORT,
            listener="CONTROLLER",
            buffers=ReceiveBuffers(1 << 20),
            frame_bytes_max=1 << 20,
            idle_ms_max=60_000,
            limits=ConnectionLimits(connections_max=100),
        )

    async def forward(self, message: Any, seconds: float = 10.0) -> tuple[Any, float]:
        """Forward a client's request; return the answer and the seconds that it took."""
        began_at = self.env.clock.monotonic()
        sender = Sender("User:a", "c", "127.0.0.1")
        version = api_versions(message.API_KEY)[1]
        answer = await self.channel.forward(sender, message, version, began_at + seconds)
        return answer, self.env.clock.monotonic() - began_at

    async def ask(self, message: Any, seconds: float = 10.0) -> Any:
        """Send a request of the node itself; return the answer or the error."""
        try:
            answer = await self.channel.request(message, self.env.clock.monotonic() + seconds)
        except KafkaError as error:
            answer = error
        self.answers.append(answer)
        return answer


Script = Callable[[World, dict[int, Node]], Awaitable[None]]


def play(script: Script) -> None:
    """Run the script with three nodes, none of which leads at first."""
    world = World(1, Weather())

    async def main() -> None:
        nodes: dict[int, Node] = {}

        async def run(node_id: int, env: Env) -> None:
            async with trio.open_nursery() as tasks:
                nodes[node_id] = Node(node_id, env, tasks)
                await env.event().wait()

        for node_id, name in NAMES.items():
            world.start(name, partial(run, node_id))
        await world.sleep(0.1)
        await script(world, nodes)

    world.run(main)


def elect(nodes: dict[int, Node], leader_id: int) -> None:
    for node in nodes.values():
        node.service.quorum.elect(leader_id)


HEARTBEAT = BrokerHeartbeatRequest(3, 1, 1)
ALTER = AlterPartitionRequest(3, 1, [])
CREATE = CreateTopicsRequest([CreatableTopic("t", 1, 1, [], [])], 1000, False)


@pytest.mark.parametrize("message", [HEARTBEAT, CREATE], ids=["plain", "in an envelope"])
def test_every_node_reaches_the_controller(message: Any) -> None:
    """Each node's request reaches the active controller: over the network, or within the same process."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        assert [(await node.ask(message)).throttle_time_ms for node in nodes.values()] == [2, 2, 2]
        assert nodes[2].service.asked[0] is not message
        assert not nodes[1].service.asked

    play(script)


def test_a_clients_answer_waits_for_the_nodes_own_image() -> None:
    """The answer to a change waits until the node's own image includes the change. Answers with earlier offsets do not
    wait."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        nodes[1].service.publish(4)
        nodes[2].service.publish(5)
        got: list[Any] = []

        async def ask() -> None:
            got.append((await nodes[1].forward(CREATE))[0])

        world.spawn(ask)
        await world.sleep(0.1)
        assert nodes[2].service.asked
        assert not got
        assert nodes[1].service.publisher.statistics()["waiting"] == 1
        # Requests of the node itself, answers of the quorum, and clients of the controller's own node do not wait.
        assert (await nodes[1].ask(HEARTBEAT)).throttle_time_ms == 2
        assert (await nodes[1].forward(DescribeQuorumRequest()))[1] < 0.1
        assert (await nodes[2].forward(CREATE))[0].throttle_time_ms == 2
        assert not got
        nodes[1].service.publish(5)
        await world.sleep(0.001)
        assert [answer.throttle_time_ms for answer in got] == [2]
        assert (await nodes[1].forward(CREATE))[1] < 0.1
        assert nodes[1].channel.statistics()["image_waits"] == 1
        assert nodes[1].channel.statistics()["image_waits_cut"] == 0
        assert nodes[1].service.publisher.statistics()["waiting"] == 0

    play(script)


@pytest.mark.parametrize("seconds", [10.0, 0.25], ids=["by its own bound", "by the request's time"])
def test_a_clients_answer_waits_no_longer_than_its_bound(seconds: float) -> None:
    """If a node reaches the controller but gets no metadata, it answers after a bounded wait, as Kafka's brokers do."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        nodes[2].service.publish(5)
        answer, took = await nodes[1].forward(CREATE, seconds)
        assert answer.throttle_time_ms == 2
        bound = min(seconds, IMAGE_WAIT_SECONDS_MAX)
        assert bound - 0.05 <= took < bound + 0.1
        assert nodes[1].channel.statistics()["image_waits_cut"] == 1
        assert nodes[1].service.publisher.statistics()["waiting"] == 0

    play(script)


def test_a_controller_that_tells_no_offset_is_not_waited_for() -> None:
    """The answer in an envelope may lack an offset, as from an older release or from Apache Kafka. It decodes to offset
    -1."""
    opened = open_request(seal_request(CREATE, 7, Sender("User:a", "c", "127.0.0.1")))
    sealed = seal_response(opened, CreateTopicsResponse(0, []))
    assert sealed.image_offset == -1
    plain = encode(sealed, 0)
    assert decode(EnvelopeResponse, 0, plain) == sealed
    with_offset = encode(seal_response(opened, CreateTopicsResponse(0, []), 1 << 40), 0)
    assert with_offset[: len(plain) - 1] == plain[:-1]
    assert with_offset[len(plain) - 1 :] == b"\x01\x64\x08" + (1 << 40).to_bytes(8, "big")


MANY = CreateTopicsRequest([CreatableTopic(f"t{number}", 1, 1, [], []) for number in range(1000)])


@pytest.mark.parametrize("asking", [1, 2], ids=["in an envelope", "in its own process"])
def test_a_long_request_is_decided_in_turns_with_others(asking: int) -> None:
    """While a long request is decided in parts, other requests are served in between. Its answer keeps the request's
    order."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        asked = nodes[2].service.asked
        spawned = []

        def ask_in_between(request: Any) -> None:
            if isinstance(request, CreateTopicsRequest) and not spawned:
                spawned.append(world.spawn(nodes[2].ask, HEARTBEAT))

        nodes[2].service.on_asked = ask_in_between
        response = await nodes[asking].ask(MANY)
        assert [each.name for each in response.topics] == [each.name for each in MANY.topics]
        kinds = [type(each) for each in asked]
        assert len(kinds) > 4
        assert 0 < kinds.index(BrokerHeartbeatRequest) < len(kinds) - 1

    play(script)


@pytest.mark.parametrize("asking", [1, 2], ids=["in an envelope", "in its own process"])
def test_a_long_request_is_asked_again_where_the_controller_is_lost_halfway(asking: int) -> None:
    """If the controller changes in the middle, the whole request is sent to the new one. No topic is answered
    NOT_CONTROLLER."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)

        def resign(request: Any) -> None:
            if len(nodes[2].service.asked) == 2:
                elect(nodes, 3)

        nodes[2].service.on_asked = resign
        response = await nodes[asking].ask(MANY)
        assert {each.error_code for each in response.topics} == {ErrorCode.NONE}
        assert len(response.topics) == 1000
        assert nodes[3].service.asked
        assert nodes[asking].channel.statistics()["retries"] == 1

    play(script)


def test_a_long_request_that_the_log_does_not_commit_in_time_is_given_up() -> None:
    """A long request that is not committed by its deadline gets REQUEST_TIMED_OUT. Its remaining parts are dropped."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        nodes[2].service.silent = True
        answer = await nodes[2].ask(MANY, 1.0)
        assert answer.code == ErrorCode.REQUEST_TIMED_OUT
        decided = len(nodes[2].service.asked)
        await world.sleep(1.0)
        assert len(nodes[2].service.asked) == decided

    play(script)


@pytest.mark.parametrize("asking", [1, 2])
def test_who_describes_many_partitions_of_the_quorum_is_refused(asking: int) -> None:
    """DescribeQuorum for many partitions answers UNKNOWN_TOPIC_OR_PARTITION for each unknown one, in order."""
    partitions = [DescribeQuorumRequestPartitionData(number) for number in range(1000)]
    request = DescribeQuorumRequest([DescribeQuorumRequestTopicData("t", partitions)])

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        (topic,) = (await nodes[asking].ask(request)).topics
        assert [each.partition_index for each in topic.partitions] == [*range(1000)]
        assert {each.error_code for each in topic.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    play(script)


@pytest.mark.parametrize("message", [HEARTBEAT, CREATE], ids=["plain", "in an envelope"])
def test_who_is_not_the_controller_any_more_is_asked_no_further(message: Any) -> None:
    """After NOT_CONTROLLER, for the request or for a topic, the request is sent again until a controller is active."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        nodes[1].service.quorum.elect(2)
        done = world.spawn(nodes[1].ask, message)
        await world.sleep(1.0)
        assert not done.is_set()
        elect(nodes, 3)
        await done.wait()
        assert nodes[1].answers[0].throttle_time_ms == 3
        assert nodes[1].channel.statistics()["retries"] > 1

    play(script)


def test_a_controller_describes_its_own_configuration() -> None:
    """A controller answers DescribeConfigs about itself. Kafka's `kafka-configs.sh --bootstrap-controller` sends such
    requests."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        own, other = DescribeConfigsResource(BROKER, "2", None), DescribeConfigsResource(BROKER, "3", None)
        request = DescribeConfigsRequest([own, other], False, False)
        peer = nodes[1].peers.channel("c2", PORT)
        response = await peer.request(request, nodes[1].env.clock.monotonic() + 5.0)
        told, refused = response.results
        assert {each.name: each.value for each in told.configs}["log.retention.ms"] == "7000"
        assert refused.error_code == ErrorCode.INVALID_REQUEST

    play(script)


def test_a_new_leader_ends_the_questions_to_a_silent_one() -> None:
    """Requests that wait for a silent controller go to the new one as soon as it is known."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        nodes[2].service.silent = True
        done = world.spawn(nodes[1].ask, CREATE, 60.0)
        await world.sleep(5.0)
        assert not done.is_set()
        elect(nodes, 3)
        await world.wait(done, 0.5)
        assert nodes[1].answers[0].throttle_time_ms == 3
        nodes[2].service.held[0].release()
        await world.sleep(1.0)

    play(script)


def test_a_heartbeat_does_not_wait_for_a_request_that_takes_long() -> None:
    """A broker's heartbeat is answered while the controller still decides the broker's changes of in-sync replicas."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        nodes[2].service.silent = True
        changed = world.spawn(nodes[1].ask, ALTER, 60.0)
        await world.sleep(1.0)
        nodes[2].service.silent = False
        assert isinstance(await nodes[1].ask(HEARTBEAT, 1.0), BrokerHeartbeatResponse)
        assert not changed.is_set()
        nodes[2].service.held[0].release()
        await world.wait(changed, 0.5)
        assert [type(each) for each in nodes[1].answers] == [BrokerHeartbeatResponse, AlterPartitionResponse]

    play(script)


def test_a_dead_controller_is_asked_until_there_is_another() -> None:
    """If the connection to the controller breaks, the request is repeated until the deadline."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        nodes[2].service.silent = True
        done = world.spawn(nodes[1].ask, HEARTBEAT, 60.0)
        await world.sleep(1.0)
        world.crash("c2")
        await world.sleep(2.0)
        assert not done.is_set()
        for node_id in (1, 3):
            nodes[node_id].service.quorum.elect(1)
        await world.wait(done, 0.5)
        assert nodes[1].answers[0].throttle_time_ms == 1

    play(script)


def test_without_a_controller_the_deadline_counts() -> None:
    """Without a controller, a request ends with REQUEST_TIMED_OUT at its own deadline."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        began_at = world.now
        answer = await nodes[1].ask(CREATE, 3.0)
        assert answer.code == ErrorCode.REQUEST_TIMED_OUT
        assert world.now - began_at == pytest.approx(3.0, abs=0.1)

    play(script)


def test_the_quorum_answers_what_is_its_own() -> None:
    """DescribeQuorum is forwarded like a client's request and answered by the quorum itself."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        for node in nodes.values():
            assert (await node.ask(DescribeQuorumRequest())).error_message == "version 2"
        assert not nodes[2].service.asked

    play(script)


def test_an_envelope_for_what_may_not_be_in_one() -> None:
    """An envelope may contain only a forwardable request (KIP-590). Any other content is refused with an error for the
    envelope."""

    async def script(world: World, nodes: dict[int, Node]) -> None:
        elect(nodes, 2)
        clock = nodes[1].env.clock
        peer = nodes[1].peers.channel("c2", PORT)
        principal = encode_principal("User:x")
        for envelope, code in (
            (seal_request(VoteRequest(None, 1, []), 2, Sender()), ErrorCode.INVALID_REQUEST),
            (EnvelopeRequest(b"\x00\x13", principal, bytes(4)), ErrorCode.INVALID_REQUEST),
            (
                EnvelopeRequest(b"\x00\x13\x00\x63" + bytes(8), principal, bytes(4)),
                ErrorCode.UNSUPPORTED_VERSION,
            ),
            (EnvelopeRequest(b"", b"", bytes(4)), ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ):
            answer = await peer.request(envelope, clock.monotonic() + 5)
            assert (answer.error_code, answer.response_data) == (code, None)

    play(script)


def test_an_envelope_keeps_who_asked() -> None:
    """The request in an envelope is unpacked unchanged, with the client's id, principal and address."""
    sender = Sender("User:anna", "app-1", "10.1.2.3")
    opened = open_request(seal_request(CREATE, 7, sender))
    assert opened.sender == sender
    assert opened.request == CREATE
    assert (opened.api_key, opened.api_version) == (19, 7)
    response = CreateTopicsResponse(5, [])
    assert open_response(seal_response(opened, response), 19, 7) == response
    sixth = open_request(seal_request(CREATE, 7, Sender(client_address="::1")))
    assert sixth.sender.client_address == "::1"


def test_an_answer_of_a_former_controller_becomes_the_envelopes_error() -> None:
    """If a former controller answers NOT_CONTROLLER, the envelope gets this error, so the broker retries, as in
    Kafka."""
    opened = open_request(seal_request(CREATE, 7, Sender()))
    refused = CreateTopicsResponse(0, [CreatableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)])
    assert seal_response(opened, refused) == EnvelopeResponse(None, ErrorCode.NOT_CONTROLLER)


def test_principals_are_written_as_kafka_does() -> None:
    """A principal is encoded as DefaultPrincipalData version 0: version, two compact strings, flag, empty tagged
    fields."""
    assert encode_principal("User:anna") == b"\x00\x00\x05User\x05anna\x00\x00"
    assert decode_principal(encode_principal("User:a:b")) == ("User:a:b", False)
    assert decode_principal(encode_principal("User:a", by_token=True)) == ("User:a", True)
    for broken in (b"", b"\x00\x01", b"\x00\x00\x09User", b"\x00\x00\x00\x00", b"\x00\x00\x02\xff\x01\x00"):
        with pytest.raises(MalformedMessage):
            decode_principal(broken)
