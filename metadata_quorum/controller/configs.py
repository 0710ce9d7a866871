"""IncrementalAlterConfigs and AlterConfigs: check and store the configuration of resources (KIP-226,
KIP-339).

Each resource is decided separately: either all its changes are made, or it gets an error. The broker that
forwards a request has checked the form of the request. If the request changes this broker's own values, the
broker has also checked that they can change while it runs
(`odradek.metadata_quorum.config.dynamic_broker_config`). The controller checks the rules that depend on the
state of the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from odradek.metadata_quorum.config.client_metrics_configs import validate_client_metrics
from odradek.metadata_quorum.config.config_defs import (
    ConfigDef,
    ConfigError,
    broker_defs,
    group_defs,
    topic_defs,
    validate_topic_configs,
)
from odradek.metadata_quorum.config.config_resources import Operation
from odradek.metadata_quorum.config.config_values import check_value
from odradek.metadata_quorum.config.effective_config import MIN_ISR, BrokerConfigLayers
from odradek.metadata_quorum.config.group_configs import validate_group_configs
from odradek.metadata_quorum.controller.config_effects import with_partition_changes
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.metadata_quorum.topic_names import invalid_topic_name_reason
from odradek.serving.disk_troubles import DIRECTORY_LISTS
from odradek.wire.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.metadata_records import ConfigRecord
from odradek.wire.structure import Message

VALUE_BYTES_MAX = 32_767
"""The largest size of a value in a record, in bytes. APPEND can make a list longer than any value in a
request.
"""

Changes = dict[str, str | None]
"""New values by key. None removes the key's value."""

Judge = Callable[[MetadataImage, Any, Mapping[str, str]], Changes]
"""A function that computes the changes of one resource in a request. The last argument of the function has
the resource's present values. Raises `KafkaError`.
"""


@attrs.frozen
class AlterConfigs:
    """The differences between IncrementalAlterConfigs and AlterConfigs: how a resource is checked, and the
    classes of the messages.
    """

    judge: Judge
    result_class: Callable[[int, str | None, int, str], Any]
    response_class: Callable[[int, list[Any]], Message]

    def decide(
        self, image: MetadataImage, request: Any, context: DecisionContext, basis: DecisionBasis
    ) -> Decision:
        """Decide a request: change all valid resources. The response has a result for each resource."""
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
        records: list[Message] = []
        results = []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            code, message = ErrorCode.NONE, None
            try:
                if counts[kind, name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
                changes = self.judge(image, resource, _in_force(image, kind, name))
                left = RECORDS_PER_REQUEST_MAX - len(records)
                records += _alter(image, kind, name, changes, basis.settings, left)
            except KafkaError as error:
                code, message = error.code, error.message
            results.append(self.result_class(code, message, kind, name))
        response = self.response_class(0, results)
        if request.validate_only:
            return Decision([], response)
        return Decision(with_partition_changes(image, records, context, basis), response)


def _operated(
    image: MetadataImage, resource: incremental.AlterConfigsResource, before: Mapping[str, str]
) -> Changes:
    """Compute the changes of an IncrementalAlterConfigs: the results of the operations on the present values."""
    kind = resource.resource_type
    wanted = [(each.name, _operate(kind, each, before.get(each.name))) for each in resource.configs]
    return _news(image, resource, wanted, before)


def _replaced(
    image: MetadataImage, resource: absolute.AlterConfigsResource, before: Mapping[str, str]
) -> Changes:
    """Compute the changes of an AlterConfigs: set the keys in the request, and remove all other keys."""
    changes = _news(image, resource, [(each.name, each.value) for each in resource.configs], before)
    named = {each.name for each in resource.configs}
    unreadable = _unreadable(image, resource.resource_type, resource.resource_name)
    changes.update((key, None) for key in sorted([*before, *unreadable]) if key not in named)
    return changes


def _news(
    image: MetadataImage, resource: Any, wanted: list[tuple[str, str | None]], before: Mapping[str, str]
) -> Changes:
    """Select the values that must be written.

    A broker's value is written even if it is unchanged, so that the broker loads key and certificate files
    again.
    """
    kind = resource.resource_type
    unreadable = _unreadable(image, kind, resource.resource_name)
    return {
        key: value
        for key, value in wanted
        if value != before.get(key) or kind == RESOURCE_BROKER or key in unreadable
    }


INCREMENTAL = AlterConfigs(
    _operated, incremental.AlterConfigsResourceResponse, incremental.IncrementalAlterConfigsResponse
)
"""IncrementalAlterConfigs, which changes single keys of resources."""
ABSOLUTE = AlterConfigs(_replaced, absolute.AlterConfigsResourceResponse, absolute.AlterConfigsResponse)
"""AlterConfigs, which replaces all values of a resource."""


_DEFS = {RESOURCE_TOPIC: topic_defs, RESOURCE_BROKER: broker_defs, RESOURCE_GROUP: group_defs}


def _operate(kind: int, config: incremental.AlterableConfig, current: str | None) -> str | None:
    if config.config_operation == Operation.SET:
        return config.value
    if config.config_operation == Operation.DELETE:
        return None
    operation = list_operation(config.config_operation)
    definitions: Mapping[str, ConfigDef] = _DEFS[kind]() if kind in _DEFS else {}
    definition = definitions.get(config.name)
    is_ours = kind == RESOURCE_BROKER and config.name in DIRECTORY_LISTS
    if not is_ours and (definition is None or definition.type != "list"):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {config.name} because its type is not LIST.",
        )
    default = "" if definition is None else definition.default
    text = (default if current is None else current) or ""
    return ",".join(combine_items(operation, text, config.value or ""))


def list_operation(number: int) -> Operation:
    """Return the list operation with this number, APPEND or SUBTRACT. The caller has already handled SET and
    DELETE. Raises `KafkaError` for an unknown number.
    """
    try:
        return Operation(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {number}") from None


def combine_items(operation: Operation, current: str, given: str) -> list[str]:
    """Apply APPEND or SUBTRACT to a list, whose items are separated by commas. Returns the new items.

    APPEND skips items that are already in the list. SUBTRACT skips items that are missing.
    """
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
    """Make the records for the changes of one resource, after all checks. Raises `KafkaError`."""
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
        elif len(value.encode()) > VALUE_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size "
                f"of {VALUE_BYTES_MAX} bytes.",
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
    """Return the resource's values that this version cannot parse, because another program wrote them. A new
    value of the same key replaces such a value.
    """
    values: Mapping[str, str] = image.unreadable_configs.get((kind, name), {})
    return values


def _check_min_isr(name: str, value: str | None) -> None:
    """Refuse a value of `min.insync.replicas` for a single broker. Refuse also to remove the value for all
    brokers.

    With ELR, all brokers need one value (KIP-966). Raises `KafkaError`.
    """
    if name:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
        )
    if value is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
        )


def _broker_id(name: str) -> int:
    """Parse the name of a broker resource as a broker id.

    Raises `KafkaError`. Brokers check it, too, but clients may send requests directly to a controller.
    """
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
    return int(name)


def _validate(
    image: MetadataImage, kind: int, name: str, configs: Mapping[str, str], settings: ControllerSettings
) -> None:
    """Check the name, the values and the existence of a resource, in this order.

    Raises `KafkaError` or `ConfigError`.
    """
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
        validate_group_configs(configs, BrokerConfigLayers(settings.static_config))
    elif kind == RESOURCE_CLIENT_METRICS:
        validate_client_metrics(name, configs)
    else:
        raise KafkaError(invalid, f"Unknown resource type {kind}")
