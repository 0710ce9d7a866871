"""ListConfigResources: the resources that have configurations, by type."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tests.conformance.asking.configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from tests.conformance.asking.talk import Talk, case


def _list(talk: Talk, version: int, *kinds: int) -> None:
    def ours(response: ListConfigResourcesResponse) -> ListConfigResourcesResponse:
        response.config_resources = [
            resource
            for resource in response.config_resources
            if resource.resource_type in (BROKER, BROKER_LOGGER) or talk.name("lcr") in resource.resource_name
        ]
        return response

    talk.ask(ListConfigResourcesRequest(list(kinds)), version, ours)


def _something_of_each(talk: Talk) -> None:
    talk.topic("lcr")
    resource = AlterConfigsResource(
        GROUP, talk.name("lcr"), [AlterableConfig("consumer.session.timeout.ms", 0, "50000")]
    )
    talk.ask_silently(IncrementalAlterConfigsRequest([resource]), 1)


@case("list_config_resources v0")
def _(talk: Talk) -> None:
    _something_of_each(talk)
    _list(talk, 0)


def _kinds(talk: Talk, *, kinds: tuple[int, ...]) -> None:
    _list(talk, 1, *kinds)


for _label, _some in {
    "v1": (),
    "of topics": (TOPIC,),
    "of brokers": (BROKER,),
    "of loggers": (BROKER_LOGGER,),
    "of client metrics": (CLIENT_METRICS,),
    "of groups": (GROUP,),
    "of topics and brokers": (TOPIC, BROKER),
    "of a type twice": (BROKER, BROKER),
    "of type unknown": (0,),
    "of type any": (1,),
    "of type cluster": (3,),
    "of type 99": (99,),
    "of a negative type": (-1,),
    "of brokers and a type that is none": (BROKER, 99),
}.items():
    case(f"list_config_resources {_label}")(partial(_kinds, kinds=_some))
