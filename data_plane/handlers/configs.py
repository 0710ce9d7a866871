"""DescribeConfigs: effective values with their sources and synonyms, as Kafka shows them.

A topic key takes its value from the topic's override, else from the broker key behind it (its synonym) if the
properties file sets that, else from Kafka's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from data_plane.broker import Broker
from data_plane.handlers.contract import Context, Result
from metadata_quorum.config_defs import ConfigDef, broker_defs, topic_defs, topic_synonyms
from metadata_quorum.topic_names import invalid_topic_name_reason
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC = 2
BROKER = 4


class Source(IntEnum):
    """Where a value comes from (Kafka's `ConfigSource`)."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}


class DescribeConfigsHandler:
    """API 32 for topics and for this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: DescribeConfigsRequest) -> Result:
        return DescribeConfigsResponse(
            0, [self._describe(resource, request) for resource in request.resources]
        )

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        try:
            if resource.resource_type == TOPIC:
                entries = self._topic_entries(resource.resource_name)
            elif resource.resource_type == BROKER:
                entries = self._broker_entries(resource.resource_name)
            else:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}"
                )
        except KafkaError as error:
            return DescribeConfigsResult(
                error.code, error.message, resource.resource_type, resource.resource_name, []
            )
        wanted = resource.configuration_keys
        shown = []
        for entry in entries:
            if wanted and entry.name not in wanted:
                continue
            if not request.include_synonyms:
                entry.synonyms = []
            shown.append(entry)
        return DescribeConfigsResult(
            ErrorCode.NONE, None, resource.resource_type, resource.resource_name, shown
        )

    def _topic_entries(self, topic: str) -> Iterator[DescribeConfigsResourceResult]:
        reason = invalid_topic_name_reason(topic)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        image = self._broker.image
        if topic not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._topic_values(image.topic_configs(topic))

    def _topic_values(self, overrides: Mapping[str, str]) -> Iterator[DescribeConfigsResourceResult]:
        defaults = self._broker.settings.topic_defaults
        for name, definition in topic_defs().items():
            if definition.internal:
                continue
            synonyms = []
            if name in overrides:
                synonyms.append(DescribeConfigsSynonym(name, overrides[name], Source.DYNAMIC_TOPIC))
            synonyms += self._broker_synonyms([synonym.name for synonym in topic_synonyms(name)])
            value = overrides.get(name, defaults.get(name, definition.default))
            source = Source(synonyms[0].source) if synonyms else Source.DEFAULT
            yield _entry(definition, value, False, source, synonyms)

    def _broker_synonyms(self, names: list[str]) -> list[DescribeConfigsSynonym]:
        """The broker keys that the properties file sets, then those that have a default."""
        explicit, defs = self._broker.settings.explicit_config, broker_defs()
        found = [
            DescribeConfigsSynonym(name, _hidden(defs[name], explicit[name]), Source.STATIC_BROKER)
            for name in names
            if name in explicit
        ]
        return found + [
            DescribeConfigsSynonym(name, defs[name].default, Source.DEFAULT)
            for name in names
            if name in defs and defs[name].default is not None and not defs[name].required
        ]

    def _broker_entries(self, name: str) -> Iterator[DescribeConfigsResourceResult]:
        own = str(self._broker.settings.node_id)
        if name == "":
            return iter(())  # cluster-wide dynamic defaults: there are none yet
        if name != own:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {own} or empty string, but received {name}",
            )
        return self._broker_values()

    def _broker_values(self) -> Iterator[DescribeConfigsResourceResult]:
        explicit = self._broker.settings.explicit_config
        for name, definition in broker_defs().items():
            if definition.internal:
                continue
            synonyms = self._broker_synonyms([name])
            is_set = name in explicit
            value = explicit[name] if is_set else None if definition.required else definition.default
            source = Source.STATIC_BROKER if is_set else Source.DEFAULT
            yield _entry(definition, value, not definition.dynamic, source, synonyms)


def _hidden(definition: ConfigDef, value: str | None) -> str | None:
    return None if definition.sensitive else value


def _entry(
    definition: ConfigDef,
    value: str | None,
    read_only: bool,
    source: Source,
    synonyms: list[DescribeConfigsSynonym],
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        definition.name,
        _hidden(definition, value),
        read_only,
        source,
        definition.sensitive,
        synonyms,
        _TYPES[definition.type],
        None,
    )
