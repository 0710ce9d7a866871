"""IncrementalAlterConfigs and AlterConfigs: this broker checks changes of its own configuration and forwards
all others.

As in Kafka, the broker checks the form of the request and the changes of its own values, and sets its own log
levels. So for some resources of a request, the broker itself has the outcome. It forwards all other resources
to the controller. The answers are in the order of the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from odradek.data_plane.handlers.administration.forwarder import Forwarder, names_many, sender_of
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.topic_configs import OwnConfig
from odradek.metadata_quorum.config.config_defs import broker_defs
from odradek.metadata_quorum.config.config_resources import Operation, parse_node_id
from odradek.metadata_quorum.config.dynamic_broker_config import (
    check_broker_change,
    has_key_stores,
    refused_stores,
)
from odradek.metadata_quorum.controller.configs import combine_items, list_operation
from odradek.metadata_quorum.envelope import Sender
from odradek.serving.contract import Context, Result, Suspend
from odradek.serving.disk_troubles import DIRECTORY_LISTS
from odradek.wire.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from odradek.wire.errors import ErrorCode, KafkaError, listed
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.structure import Message

Outcome: TypeAlias = tuple[ErrorCode, str | None]
_DONE: Outcome = (ErrorCode.NONE, None)
_NAMED_TWICE: Outcome = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
THINGS_PER_TURN = 400
"""The number of resources and keys that are checked in one turn. This takes a few milliseconds."""
_STORED = (RESOURCE_TOPIC, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)


Judge: TypeAlias = Callable[[OwnConfig, Any, bool], Outcome | None]
"""A function that checks one resource of a request. The last argument is `validate_only`. The function
returns an outcome, or None if the controller has to decide.

Raises `KafkaError`.
"""


@attrs.frozen
class AlterApi:
    """The differences between IncrementalAlterConfigs and AlterConfigs: how one resource is checked, and the
    classes of the messages.
    """

    judge: Judge
    values_after: Callable[[OwnConfig, Any], Mapping[str, str]]
    """A function that computes a broker's dynamic values after the changes of one resource."""
    result_class: Callable[[int, str | None, int, str], Any]
    response_class: Callable[[int, list[Any]], Message]


class AlterConfigsHandler:
    """Handler of AlterConfigs (API 33) or IncrementalAlterConfigs (API 44); `api` says which."""

    def __init__(self, desk: Desk, forwarder: Forwarder, own: OwnConfig, api: AlterApi) -> None:
        self._desk = desk
        self._forwarder = forwarder
        self._own = own
        self._api = api

    def handle(self, context: Context, request: Any) -> Result:
        version, sender = context.api_version, sender_of(context)

        async def ask() -> Any:
            judged = await self._judge_all(request)
            judged = await self._judge_stores(request, judged)
            outcomes = await self._decide(sender, request, judged, version)
            return self._api.response_class(
                0,
                [
                    self._api.result_class(code, message, each.resource_type, each.resource_name)
                    for each, (code, message) in zip(request.resources, outcomes, strict=True)
                ],
            )

        return Suspend(ask, is_long=names_many(request))

    async def _judge_all(self, request: Any) -> list[Outcome | None]:
        """Check each resource, a few milliseconds at a time.

        Returns a list with an item for each resource: its outcome, or None if the controller has to decide.
        """
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)

        def judge_some(resources: Sequence[Any]) -> list[Outcome | None]:
            return [
                _NAMED_TWICE
                if counts[(each.resource_type, each.resource_name)] > 1
                else self._judged(each, request.validate_only)
                for each in resources
            ]

        groups = _groups(request.resources)
        if len(groups) == 1:
            return judge_some(groups[0])
        share = self._desk.long_work.begin()
        return [outcome for group in groups for outcome in await share.on_loop(judge_some, group)]

    def _judged(self, resource: Any, validate_only: bool) -> Outcome | None:
        try:
            return self._api.judge(self._own, resource, validate_only)
        except KafkaError as error:
            return error.code, error.message

    async def _judge_stores(self, request: Any, judged: Sequence[Outcome | None]) -> list[Outcome | None]:
        """Check changed keys and certificates of the listeners. The check reads files.

        Returns the outcomes with refusals added.
        """
        own = self._own
        outcomes = list(judged)
        for index, resource in enumerate(request.resources):
            if (
                outcomes[index] is None
                and resource.resource_type == RESOURCE_BROKER
                and resource.resource_name
            ):
                after = self._api.values_after(own, resource)
                if has_key_stores(after) and own.check_key_stores is not None:
                    reason = await own.check_key_stores(after)
                    if reason:
                        refused = refused_stores(reason)
                        outcomes[index] = (refused.code, refused.message)
        return outcomes

    async def _decide(
        self, sender: Sender, request: Any, judged: Sequence[Outcome | None], version: int
    ) -> list[Outcome]:
        """Forward the resources without an outcome to the controller.

        Returns all outcomes in the order of the request.
        """
        left = [
            _normalised(self._own, resource)
            for resource, outcome in zip(request.resources, judged, strict=True)
            if outcome is None
        ]
        decided: list[Outcome] = []
        if left:
            asked = attrs.evolve(request, resources=left)
            try:
                response = await self._forwarder.ask(sender, asked, version)
                decided = [(ErrorCode(each.error_code), each.error_message) for each in response.responses]
            except KafkaError as error:
                decided = [(error.code, error.message or None)] * len(left)
        rest = iter(decided)
        return [next(rest) if outcome is None else outcome for outcome in judged]


def _values_after_operations(own: OwnConfig, resource: incremental.AlterConfigsResource) -> Mapping[str, str]:
    return _operated(own.dynamic(for_all=not resource.resource_name), resource.configs)


def _values_after_replacement(_: OwnConfig, resource: absolute.AlterConfigsResource) -> Mapping[str, str]:
    return {c.name: c.value for c in resource.configs if c.value is not None}


def _judge_operations(
    own: OwnConfig, resource: incremental.AlterConfigsResource, validate_only: bool
) -> Outcome | None:
    _check_shape(
        resource.configs, [c.name for c in resource.configs if c.config_operation != Operation.DELETE]
    )
    kind, name = resource.resource_type, resource.resource_name
    if kind == RESOURCE_BROKER_LOGGER:
        _check_node_id(own, name, "Unexpected node id. Expected {}, but received {}")
        own.log_levels.alter([(c.name, c.config_operation, c.value) for c in resource.configs], validate_only)
        return _DONE
    if kind == RESOURCE_BROKER:
        _check_is_own(own, name)
        _check_broker(own, name, _values_after_operations(own, resource))
    else:
        _check_is_stored(kind)
    return None


def _judge_replacement(
    own: OwnConfig, resource: absolute.AlterConfigsResource, validate_only: bool
) -> Outcome | None:
    _check_shape(resource.configs, [c.name for c in resource.configs])
    kind, name = resource.resource_type, resource.resource_name
    if kind == RESOURCE_BROKER:
        _check_is_own(own, name)
        _check_broker(own, name, _values_after_replacement(own, resource))
    else:
        _check_is_stored(kind)
    return None


INCREMENTAL = AlterApi(
    _judge_operations,
    _values_after_operations,
    incremental.AlterConfigsResourceResponse,
    incremental.IncrementalAlterConfigsResponse,
)
"""IncrementalAlterConfigs (API 44), which changes single keys of resources."""
ABSOLUTE = AlterApi(
    _judge_replacement,
    _values_after_replacement,
    absolute.AlterConfigsResourceResponse,
    absolute.AlterConfigsResponse,
)
"""AlterConfigs (API 33), which replaces all dynamic values of a resource."""


def _check_node_id(own: OwnConfig, name: str, otherwise: str) -> None:
    """Check that a broker resource names this broker. Raises `KafkaError` INVALID_REQUEST."""
    number = parse_node_id(name)
    if number is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if number != own.node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, otherwise.format(own.node_id, name))


def _groups(resources: Sequence[Any]) -> list[list[Any]]:
    """Divide the resources into consecutive groups. Each group is checked in one turn."""
    groups: list[list[Any]] = [[]]
    things = 0
    for resource in resources:
        if things >= THINGS_PER_TURN:
            groups.append([])
            things = 0
        things += 1 + len(resource.configs)
        groups[-1].append(resource)
    return groups


def _normalised(own: OwnConfig, resource: Any) -> Any:
    """Replace the name of a broker resource, e.g. `01`, by this broker's id.

    Kafka would store the value under `01`, where it has no effect.
    """
    if resource.resource_type == RESOURCE_BROKER and resource.resource_name:
        return attrs.evolve(resource, resource_name=str(own.node_id))
    return resource


def _check_shape(configs: Sequence[Any], with_value: Sequence[str]) -> None:
    names = [config.name for config in configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    wanted = frozenset(with_value)
    without = [config.name for config in configs if config.value is None and config.name in wanted]
    if without:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {listed(without)}")


def _check_is_stored(kind: int) -> None:
    """Check that the metadata log stores configurations of this resource type. Raises `KafkaError`."""
    if kind not in _STORED:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _check_is_own(own: OwnConfig, name: str) -> None:
    if name:
        _check_node_id(own, name, "Unexpected broker id, expected {}, but received {}")


def _check_broker(own: OwnConfig, name: str, after: Mapping[str, str]) -> None:
    check_broker_change(
        after,
        own.layers,
        per_broker=bool(name),
        log_dirs=own.log_dir_paths,
    )


def _operated(before: Mapping[str, str], configs: Sequence[incremental.AlterableConfig]) -> dict[str, str]:
    """Apply the operations to a broker's present values `before`, and return the result. `before` may lack
    values that this broker does not know yet.
    """
    after = dict(before)
    for config in configs:
        if config.config_operation == Operation.SET:
            after[config.name] = config.value or ""
        elif config.config_operation == Operation.DELETE:
            after.pop(config.name, None)
        else:
            operation = list_operation(config.config_operation)
            current = after.get(config.name, _default_list(operation, config.name))
            after[config.name] = ",".join(combine_items(operation, current, config.value or ""))
    return after


def _default_list(operation: Operation, name: str) -> str:
    """Return the default of a configuration key whose type is a list. Raises `KafkaError` for other types."""
    if name in DIRECTORY_LISTS:
        return ""
    definition = broker_defs().get(name)
    if definition is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if definition.type != "list":
        text = f"Config value {operation.name.lower()} is not allowed for config key: {name}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)
    return definition.default or ""
