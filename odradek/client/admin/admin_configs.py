"""Reads and changes the configurations of topics, brokers and groups. The functions are operations. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of, item_error, reachable, scatter, this_broker
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "AlterConfig",
    "ConfigDescription",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ResourceType",
    "describe_configs",
    "incremental_alter_configs",
    "list_config_resources",
]


class ResourceType(IntEnum):
    """The kinds of resource that have a configuration (Kafka's ConfigResource.Type)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The level at which a configuration value was set, such as topic or broker (KIP-226)."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigType(IntEnum):
    """The type of a configuration value, such as INT or PASSWORD (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigOperation(IntEnum):
    """The way in which an `AlterConfig` changes a value (KIP-339). APPEND and SUBTRACT are for keys that hold
    lists.
    """

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@attrs.frozen
class ConfigResource:
    """The topic, broker or group that a configuration belongs to. The type BROKER with an empty name means
    the default of all brokers.
    """

    type: ResourceType
    name: str

    def __str__(self) -> str:
        kind = self.type.name.lower().replace("_", " ")
        return f"{kind} {self.name}" if self.name else f"every {kind}"


@attrs.frozen
class ConfigSynonym:
    """One of the values that are set for a configuration key. `source` is the level at which the value is set
    (topic, broker, default, ...). `name` is the key's name at that level. In a list of synonyms, the first
    has the effective value.
    """

    name: str
    value: str | None
    source: ConfigSource


@attrs.frozen
class ConfigEntry:
    """A configuration key with its effective value. `value` is None for a sensitive key."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None


@attrs.frozen
class ConfigDescription:
    """The configuration of a resource, sorted by key. It is empty if `error` is set."""

    resource: ConfigResource
    entries: tuple[ConfigEntry, ...]
    error: CallError | None = None

    def __getitem__(self, key: str) -> ConfigEntry:
        """Return the entry of a key. Raises `KeyError` for an unknown key, or `self.error` if it is set."""
        if self.error is not None:
            raise self.error
        for entry in self.entries:
            if entry.name == key:
                return entry
        raise KeyError(key)


@attrs.frozen
class AlterConfig:
    """One change of one configuration key."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


def describe_configs(
    core: ClientCore,
    resources: Sequence[ConfigResource],
    keys: Sequence[str] | None = None,
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
    timeout: float | None = None,
) -> Operation[list[ConfigDescription]]:
    """Describe the effective configuration of each resource, for these keys (None: for all keys).

    A broker's configuration is requested from that broker itself; the name of the resource is the broker's
    id. Raises `ClientError`.
    """
    from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    def message(wanted: list[ConfigResource], _: int) -> DescribeConfigsRequest:
        return DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=int(resource.type),
                    resource_name=resource.name,
                    configuration_keys=None if keys is None else list(keys),
                )
                for resource in wanted
            ],
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
        )

    def take(
        response: Any, _: list[ConfigResource]
    ) -> Iterable[tuple[ConfigResource, ConfigDescription | CallError]]:
        for answer in response.results:
            resource = ConfigResource(_resource_type(answer.resource_type), answer.resource_name)
            error = item_error(answer.error_code, answer.error_message, str(resource))
            entries = sorted((_entry(each) for each in answer.configs), key=lambda entry: entry.name)
            yield resource, error or ConfigDescription(resource, tuple(entries))

    outcomes = yield from scatter(
        core, resources, this_broker(_node_of), message, take, deadline=deadline_of(core, timeout)
    )
    return [
        found if isinstance(found, ConfigDescription) else ConfigDescription(resource, (), found)
        for resource, found in outcomes.items()
    ]


def incremental_alter_configs(
    core: ClientCore,
    changes: Mapping[ConfigResource, Sequence[AlterConfig]],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Operation[list[tuple[ConfigResource, CallError | None]]]:
    """Change single keys of resources; all other keys stay unchanged (KIP-339).

    Returns the error or None for each resource. The request is not repeated after a lost connection, because an APPEND
    or SUBTRACT might then be applied twice. Raises `ClientError`.
    """
    from odradek.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    def message(wanted: list[ConfigResource], _: int) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=int(resource.type),
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(
                            name=change.name, config_operation=int(change.operation), value=change.value
                        )
                        for change in changes[resource]
                    ],
                )
                for resource in wanted
            ],
            validate_only=validate_only,
        )

    def take(response: Any, _: list[ConfigResource]) -> Iterable[tuple[ConfigResource, KafkaError | None]]:
        for answer in response.responses:
            resource = ConfigResource(_resource_type(answer.resource_type), answer.resource_name)
            yield resource, item_error(answer.error_code, answer.error_message, str(resource))

    outcomes = yield from scatter(
        core,
        changes,
        this_broker(_node_of),
        message,
        take,
        deadline=deadline_of(core, timeout),
        repeat_after_loss=False,
    )
    return list(outcomes.items())


def list_config_resources(
    core: ClientCore, types: Sequence[ResourceType] = (), *, timeout: float | None = None
) -> Operation[list[ConfigResource]]:
    """List the resources that have a configuration (KIP-1142). With `types`, only resources of these types
    are listed.

    Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.list_config_resources import ListConfigResourcesRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    message = ListConfigResourcesRequest(resource_types=[int(each) for each in types])
    response = yield from request(core, message, timeout=deadline - core.now)
    error = item_error(response.error_code, None, "configuration resources")
    if error is not None:
        raise error
    found = [
        ConfigResource(_resource_type(each.resource_type), each.resource_name)
        for each in response.config_resources
    ]
    return sorted(found, key=lambda resource: (resource.type, resource.name))


def _node_of(resource: ConfigResource) -> int | None:
    """Return the id of the broker that must describe this resource; None if any broker can describe it."""
    if resource.type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) or not resource.name:
        return None
    try:
        return int(resource.name)
    except ValueError:
        # Leave this malformed broker id to a broker, which refuses it with its own error text.
        return None


def _entry(answer: Any) -> ConfigEntry:
    return ConfigEntry(
        answer.name,
        answer.value,
        _source(answer.config_source),
        answer.read_only,
        answer.is_sensitive,
        _type(answer.config_type),
        tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in answer.synonyms),
        answer.documentation or None,
    )


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _type(number: int) -> ConfigType:
    try:
        return ConfigType(number)
    except ValueError:
        return ConfigType.UNKNOWN


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        return ResourceType.UNKNOWN
