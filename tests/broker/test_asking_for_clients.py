"""A broker forwards a client's request to the active controller in the client's name (KIP-590)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import trio

from odradek.data_plane.handlers.administration.alter_configs import INCREMENTAL, AlterConfigsHandler
from odradek.data_plane.handlers.administration.forwarded import ForwardingHandler
from odradek.data_plane.handlers.administration.forwarder import Forwarder
from odradek.data_plane.handlers.metadata import MetadataHandler
from odradek.data_plane.replication.following.departures import Departures
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.controller.refusals import refusal
from odradek.metadata_quorum.envelope import Sender
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.ports import ControllerPort
from odradek.serving.contract import Context, Handler, Suspend
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_partitions import CreatePartitionsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.elect_leaders import ElectLeadersRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from sim.machine.weather import Weather
from sim.machine.world import World

TOPIC = 2


class Controller:
    """A controller that records the sender of each request, and refuses the request."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sender, int, float]] = []

    async def forward(self, sender: Sender, message: Any, version: int, deadline: float) -> Any:
        self.asked.append((sender, version, deadline))
        return refusal(message, ErrorCode.POLICY_VIOLATION)


def desk_with(**parts: Any) -> Any:
    """Make the desk of a broker whose clock stands at 100 seconds."""
    settings = SimpleNamespace(request_timeout_ms=7000, node_id=1, auto_create_topics_enable=True)
    return SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 100.0), settings=settings, **parts)


def forwarder_to(controller: Any, **parts: Any) -> Forwarder:
    return Forwarder(desk_with(**parts), controller)


def alter_configs(forwarder: Forwarder, **parts: Any) -> Handler:
    own: Any = SimpleNamespace(node_id=1)
    return AlterConfigsHandler(desk_with(**parts), forwarder, own, INCREMENTAL).handle


@pytest.mark.parametrize(
    ("request_message", "waits_seconds"),
    [
        (CreateTopicsRequest([CreatableTopic("t", 1, 1)], 5000), 5),
        (DeleteTopicsRequest([DeleteTopicState("t")], timeout_ms=5000), 5),
        (CreatePartitionsRequest([], 9000), 7),
        (ElectLeadersRequest(0, None, 5000), 7),
        (
            IncrementalAlterConfigsRequest(
                [AlterConfigsResource(TOPIC, "t", [AlterableConfig("flush.ms", 0, "5")])]
            ),
            7,
        ),
    ],
)
def test_the_controller_is_told_who_asks(request_message: Any, waits_seconds: int) -> None:
    """The controller gets principal, client id and version as they were when the request came, even if they change
    later."""
    controller = Controller()
    forwarder = forwarder_to(controller)
    about_topics = ForwardingHandler(forwarder, refusal, waits_as_asked=True).handle
    handlers = {
        **dict.fromkeys((ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS), about_topics),
        ApiKey.ELECT_LEADERS: ForwardingHandler(forwarder, refusal).handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs(forwarder),
    }
    context = Context("PLAINTEXT", "10.0.0.7")
    context.principal, context.client_id, context.api_version = "User:alice", "her client", 1
    suspended = handlers[request_message.API_KEY](context, request_message)
    assert isinstance(suspended, Suspend)
    context.client_id, context.api_version = "another", 2

    async def run() -> Any:
        return await suspended.run()

    assert trio.run(run) is not None
    ((sender, version, deadline),) = controller.asked
    assert sender == Sender("User:alice", "her client", "10.0.0.7")
    assert (version, deadline) == (1, 100.0 + waits_seconds)


class Turns:
    """The node's long work. It records how many resources are checked in each turn."""

    def __init__(self) -> None:
        self.judged: list[int] = []
        self.is_busy = False

    def begin(self) -> Turns:
        return self

    async def on_loop(self, function: Any, resources: Any) -> Any:
        self.judged.append(len(resources))
        return function(resources)

    async def in_worker(self, function: Any, *args: Any) -> Any:
        return function(*args)


def test_a_broker_judges_a_long_request_in_turns_and_asks_once() -> None:
    """A long request is checked in turns and forwarded once. The results stay in the order of the request."""
    names = [f"g{number}" for number in range(1000)]
    names[7] = names[990]
    resources = [
        AlterConfigsResource(32, name, [AlterableConfig("consumer.session.timeout.ms", 0, "50000")])
        for name in names
    ]
    resources[500] = AlterConfigsResource(77, "what", [])
    controller, turns = Controller(), Turns()
    handle = alter_configs(forwarder_to(controller, long_work=turns), long_work=turns)
    suspended = handle(Context("PLAINTEXT", "10.0.0.7"), IncrementalAlterConfigsRequest(resources))
    assert isinstance(suspended, Suspend)

    async def run() -> Any:
        return await suspended.run()

    response = trio.run(run)
    codes = [each.error_code for each in response.responses]
    assert [each.resource_name for each in response.responses] == [each.resource_name for each in resources]
    own = {7, 500, 990}
    assert {at for at, code in enumerate(codes) if code == ErrorCode.INVALID_REQUEST} == own
    assert all(code == ErrorCode.POLICY_VIOLATION for at, code in enumerate(codes) if at not in own)
    assert len(controller.asked) == 1
    assert len(turns.judged) > 4
    assert max(turns.judged) < 400


def test_a_topic_made_on_first_use_is_made_in_the_name_of_who_used_it() -> None:
    """KIP-590: an auto-created topic is created in the name of the client that used it, so the client's ACLs apply."""
    controller = Controller()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            desk = desk_with(
                long_work=SimpleNamespace(is_busy=False, described=0),
                image=MetadataImage(),
                tasks=nursery,
                log=structlog.get_logger(),
            )
            own: Any = SimpleNamespace(layers=BrokerConfigLayers({}))
            context = Context("PLAINTEXT", "10.0.0.7")
            context.principal, context.client_id, context.api_version = "User:alice", "her client", 9
            asked = MetadataRequest([MetadataRequestTopic(name="fresh")], allow_auto_topic_creation=True)
            departures = Departures(World(1, Weather()).node_env("a"), lambda leader: False, list)
            handler = MetadataHandler(desk, cast(ControllerPort, controller), own, departures)
            answer = handler.handle(context, asked)
            assert isinstance(answer, MetadataResponse)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            context.client_id = "another"

    trio.run(run)
    ((sender, version, deadline),) = controller.asked
    assert sender == Sender("User:alice", "her client", "10.0.0.7")
    assert (version, deadline) == (CreateTopicsRequest.VALID_VERSIONS[1], 107.0)
