"""DescribeConfigs for topics and for this broker: effective values with their sources and synonyms."""

from __future__ import annotations

import re

from data_plane.broker import Broker
from data_plane.handlers.contract import Context, Result
from metadata_quorum.effective_config import ConfigEntry, describe_broker_config, describe_topic_config
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
_INTEGER = re.compile(r"[+-]?[0-9]+")


class DescribeConfigsHandler:
    """API 32."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: DescribeConfigsRequest) -> Result:
        return DescribeConfigsResponse(
            0, [self._describe(resource, request.include_synonyms) for resource in request.resources]
        )

    def _describe(self, resource: DescribeConfigsResource, with_synonyms: bool) -> DescribeConfigsResult:
        kind, name = resource.resource_type, resource.resource_name
        try:
            if kind == TOPIC:
                entries = self._topic_entries(name)
            elif kind == BROKER:
                entries = self._broker_entries(name)
            else:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
        except KafkaError as error:
            return DescribeConfigsResult(error.code, error.message, kind, name, [])
        wanted = resource.configuration_keys
        shown = [_shown(entry, with_synonyms) for entry in entries if not wanted or entry.name in wanted]
        return DescribeConfigsResult(ErrorCode.NONE, "", kind, name, shown)

    def _topic_entries(self, topic: str) -> list[ConfigEntry]:
        reason = invalid_topic_name_reason(topic)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        image = self._broker.image
        if image.topics.get(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return describe_topic_config(image.topic_configs(topic), self._broker.settings.config_layers)

    def _broker_entries(self, name: str) -> list[ConfigEntry]:
        settings = self._broker.settings
        own = str(settings.node_id)
        if name and not _INTEGER.fullmatch(name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if name not in ("", own):
            message = f"Unexpected broker id, expected {own} or empty string, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return describe_broker_config(settings.config_layers, only_dynamic=not name)


def _shown(entry: ConfigEntry, with_synonyms: bool) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if with_synonyms else ()
    return DescribeConfigsResourceResult(
        entry.name,
        entry.value,
        entry.read_only,
        entry.source,
        entry.sensitive,
        [DescribeConfigsSynonym(synonym.name, synonym.value, synonym.source) for synonym in synonyms],
        entry.type,
        None,
    )
