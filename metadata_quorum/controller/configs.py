"""IncrementalAlterConfigs and AlterConfigs: what is stored, and what a resource may be told (KIP-226, KIP-339).

Each resource is decided by itself: it changes as a whole or gets an error. The broker that was asked has looked at
the shape of the request and, for its own values, at what a running node can change
(`metadata_quorum.config.dynamic_broker_config`); the controller checks what is about the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from metadata_quorum.config.client_metrics_configs import validate_client_metrics
from metadata_quorum.config.config_defs import (
    ConfigDef,
    ConfigError,
    broker_defs,
    group_defs,
    topic_defs,
    validate_topic_configs,
)
from metadata_quorum.config.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    Operation,
)
from metadata_quorum.config.config_values import check_value
from metadata_quorum.config.effective_config import MIN_ISR
from metadata_quorum.config.group_configs import validate_group_configs
from metadata_quorum.controller.config_effects import with_partition_changes
from metadata_quorum.controller.controller_settings import ControllerSettings
from metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX
from metadata_quorum.image.metadata_image import MetadataImage
from metadata_quorum.state_machine import Decision, DecisionContext
from metadata_quorum.topic_names import invalid_topic_name_reason
from wire.errors import ErrorCode, KafkaError
from wire.messages import alter_configs as absolute
from wire.messages import incremental_alter_configs as incremental
from wire.messages.metadata_records import ConfigRecord
from wire.structure import Message

VALUE_LENGTH_MAX = 32_767


Changes = dict[str, str | None]
"""New values by key; None takes the override away."""

Resource = TypeVar("Resource", incremental.AlterConfigsResource, absolute.AlterConfigsResource)
Response = TypeVar(
    "Response", incremental.AlterConfigsResourceResponse, absolute.AlterConfigsResourceResponse
)


def incremental_alter_configs(
    image: MetadataImage,
    request: incremental.IncrementalAlterConfigsRequest,
    context: DecisionContext,
    settings: ControllerSettings,
) -> Decision:
    """Change single keys of resources."""

    def changes_of(resource: incremental.AlterConfigsResource, before: Mapping[str, str]) -> Changes:
        kind = resource.resource_type
        changes: Changes = {}
        for config in resource.configs:
            value = _operate(kind, config, before.get(config.name))
            # A broker's value is written anew even if it is the same: it makes brokers load files again.
            if (
                value != before.get(config.name)
                or kind == RESOURCE_BROKER
                or config.name in _unreadable(image, kind, resource.resource_name)
            ):
                changes[config.name] = value
        return changes

    records, responses = _each(
        image, request.resources, changes_of, incremental.AlterConfigsResourceResponse, settings
    )
    response = incremental.IncrementalAlterConfigsResponse(0, responses)
    if request.validate_only:
        return Decision([], response)
    return Decision(with_partition_changes(image, records, context, settings), response)


def alter_configs(
    image: MetadataImage,
    request: absolute.AlterConfigsRequest,
    context: DecisionContext,
    settings: ControllerSettings,
) -> Decision:
    """Replace all overrides of resources: a key that is not named is taken away."""

    def changes_of(resource: absolute.AlterConfigsResource, before: Mapping[str, str]) -> Changes:
        kind = resource.resource_type
        unreadable = _unreadable(image, kind, resource.resource_name)
        changes: Changes = {}
        for config in resource.configs:
            if (
                config.value != before.get(config.name)
                or kind == RESOURCE_BROKER
                or config.name in unreadable
            ):
                changes[config.name] = config.value
        named = {config.name for config in resource.configs}
        changes.update((key, None) for key in sorted([*before, *unreadable]) if key not in named)
        return changes

    records, responses = _each(
        image, request.resources, changes_of, absolute.AlterConfigsResourceResponse, settings
    )
    response = absolute.AlterConfigsResponse(0, responses)
    if request.validate_only:
        return Decision([], response)
    return Decision(with_partition_changes(image, records, context, settings), response)


def _each(
    image: MetadataImage,
    resources: Sequence[Resource],
    changes_of: Callable[[Resource, Mapping[str, str]], Changes],
    response_class: Callable[[int, str | None, int, str], Response],
    settings: ControllerSettings,
) -> tuple[list[Message], list[Response]]:
    """The records of all resources together, and what became of each."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    records: list[Message] = []
    responses = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if counts[kind, name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
            changes = changes_of(resource, _in_force(image, kind, name))
            records += _alter(image, kind, name, changes, settings, RECORDS_PER_REQUEST_MAX - len(records))
        except KafkaError as error:
            code, message = error.code, error.message
        responses.append(response_class(code, message, kind, name))
    return records, responses


def refuse_incremental(
    request: incremental.IncrementalAlterConfigsRequest, code: ErrorCode, message: str | None
) -> incremental.IncrementalAlterConfigsResponse:
    """One error for every resource."""
    return incremental.IncrementalAlterConfigsResponse(
        0,
        [
            incremental.AlterConfigsResourceResponse(code, message, each.resource_type, each.resource_name)
            for each in request.resources
        ],
    )


def refuse_absolute(
    request: absolute.AlterConfigsRequest, code: ErrorCode, message: str | None
) -> absolute.AlterConfigsResponse:
    """One error for every resource."""
    return absolute.AlterConfigsResponse(
        0,
        [
            absolute.AlterConfigsResourceResponse(code, message, each.resource_type, each.resource_name)
            for each in request.resources
        ],
    )


_DEFS = {RESOURCE_TOPIC: topic_defs, RESOURCE_BROKER: broker_defs, RESOURCE_GROUP: group_defs}


def _operate(kind: int, config: incremental.AlterableConfig, current: str | None) -> str | None:
    if config.config_operation == Operation.SET:
        return config.value
    if config.config_operation == Operation.DELETE:
        return None
    operation = list_operation(config.config_operation)
    definitions: Mapping[str, ConfigDef] = _DEFS[kind]() if kind in _DEFS else {}
    definition = definitions.get(config.name)
    if definition is None or definition.type != "list":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {config.name} because its type is not LIST.",
        )
    text = (definition.default if current is None else current) or ""
    return ",".join(combine_items(operation, text, config.value or ""))


def list_operation(number: int) -> Operation:
    """APPEND or SUBTRACT. Raises `KafkaError` for what is no operation at all."""
    try:
        return Operation(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {number}") from None


def combine_items(operation: Operation, current: str, given: str) -> list[str]:
    """A list after APPEND or SUBTRACT: appending what it holds already changes nothing, nor does taking away what
    it does not hold."""
    items = [item for item in current.split(",") if item]
    if operation == Operation.APPEND:
        known = dict.fromkeys(items)
        return items + [item for item in dict.fromkeys(given.split(",")) if item not in known]
    taken: dict[str, int] = {}
    for item in given.split(","):
        taken[item] = taken.get(item, 0) + 1
    left = []
    for item in items:
        if taken.get(item, 0):
            taken[item] -= 1
        else:
            left.append(item)
    return left


def _alter(
    image: MetadataImage,
    kind: int,
    name: str,
    changes: Changes,
    settings: ControllerSettings,
    records_max: int,
) -> list[Message]:
    """The records of one resource. Raises `KafkaError`."""
    if len(changes) > records_max:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    before = _in_force(image, kind, name)
    unreadable = _unreadable(image, kind, name)
    after = dict(before)
    for key, value in changes.items():
        if kind == RESOURCE_BROKER and key == MIN_ISR:
            _check_min_isr(name, value)
        if value is None:
            after.pop(key, None)
        elif len(value) > VALUE_LENGTH_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size "
                f"of {VALUE_LENGTH_MAX} bytes.",
            )
        else:
            after[key] = value
    try:
        for key, value in changes.items():
            if value is not None and kind == RESOURCE_BROKER:
                check_value(kind, key, value)
        _validate(image, kind, name, after, settings)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return [
        ConfigRecord(kind, name, key, value)
        for key, value in changes.items()
        if value is not None or key in before or key in unreadable
    ]


def _in_force(image: MetadataImage, kind: int, name: str) -> Mapping[str, str]:
    values: Mapping[str, str] = image.configs.get((kind, name), {})
    return values


def _unreadable(image: MetadataImage, kind: int, name: str) -> Mapping[str, str]:
    """Texts of another program: a change of such a key, to whatever value, takes them away."""
    values: Mapping[str, str] = image.unreadable_configs.get((kind, name), {})
    return values


def _check_min_isr(name: str, value: str | None) -> None:
    """Which replicas are eligible leaders (KIP-966) depends on one number for the whole cluster."""
    if name:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
        )
    if value is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
        )


def _broker_id(name: str) -> int:
    """Raises `KafkaError`: brokers have looked at the name, but a controller may be asked without one."""
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
    return int(name)


def _validate(
    image: MetadataImage, kind: int, name: str, configs: Mapping[str, str], settings: ControllerSettings
) -> None:
    """Name, values, existence, in this order. Raises `KafkaError` or `ConfigError`."""
    invalid = ErrorCode.INVALID_REQUEST
    if kind == RESOURCE_TOPIC:
        if not name:
            raise KafkaError(invalid, "Default topic resources are not allowed.")
        reason = invalid_topic_name_reason(name)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        validate_topic_configs(configs, remote_storage=settings.remote_storage_enable)
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind == RESOURCE_BROKER:
        if name and _broker_id(name) not in image.brokers:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")
    elif kind == RESOURCE_GROUP:
        if not name:
            raise KafkaError(invalid, "Default group resources are not allowed.")
        validate_group_configs(configs, settings.static_config)
    elif kind == RESOURCE_CLIENT_METRICS:
        validate_client_metrics(name, configs)
    else:
        raise KafkaError(invalid, f"Unknown resource type {kind}")
