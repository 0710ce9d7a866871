"""DescribeConfigs and ListConfigResources: the values in force with their sources and synonyms, and a list of
the resources that have values of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from odradek.metadata_quorum.config.config_docs import config_doc
from odradek.metadata_quorum.config.config_resources import parse_node_id
from odradek.metadata_quorum.config.effective_config import (
    CONFIG_TYPES,
    BrokerConfigLayers,
    ConfigEntry,
    ConfigSource,
    describe_broker_config,
    describe_client_metrics,
    describe_group_config,
    inherited_topic_entries,
    with_overrides,
)
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.topic_names import invalid_topic_name_reason
from odradek.serving.answer_size import TOO_LARGE, TOO_LARGE_MESSAGE, RepeatedSize
from odradek.serving.contract import Context, Result
from odradek.serving.disk_troubles import (
    DEMOTED_LOG_DIRS,
    RATE_BEFORE,
    RELEASED_LOG_DIRS,
    RETIRING_LOG_DIRS,
    TROUBLED_LOG_DIRS,
)
from odradek.serving.long_work import LongWork
from odradek.serving.steps import Work, in_slices
from odradek.wire.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from odradek.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek.wire.schema.versions import LIST_CONFIG_RESOURCES_KINDS

_DOC_SCOPES = {
    RESOURCE_TOPIC: "topic",
    RESOURCE_BROKER: "broker",
    RESOURCE_CLIENT_METRICS: "client-metrics",
    RESOURCE_GROUP: "group",
}
RESOURCE_UNITS = 20
"""The cost of describing one resource, in units of work. The description of one partition costs 1."""
REFUSED_UNITS = 3
ENTRY_BYTES = 80
NAMED_FREELY = (RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)
"""Types of resources that need not exist to be described. All resources without values of their own get the
same description.
"""
Owner = tuple[int, str | None]
"""The type and name of a resource. With the name None, it stands for all resources of this type that have no
values of their own.
"""
_MARKS = (RETIRING_LOG_DIRS, RELEASED_LOG_DIRS, DEMOTED_LOG_DIRS, RATE_BEFORE)
"""Keys of broker resources without a definition. Commands about log directories store their state under these
keys.
"""
RESOURCES = (RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)


class Described(Protocol):
    """The node whose configuration is described: a broker, or a node that is only a controller."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def config_layers(self) -> BrokerConfigLayers: ...

    @property
    def log_levels(self) -> LogLevels: ...

    @property
    def long_work(self) -> LongWork: ...


class _Answered:
    """The results that a response already contains. If a resource occurs again in the request, it shares the earlier
    results.
    """

    __slots__ = ("each", "entries", "repeated", "shown")

    def __init__(self) -> None:
        self.entries: dict[Owner, list[ConfigEntry]] = {}
        self.each: dict[tuple[int, str], tuple[ConfigEntry, DescribeConfigsResourceResult]] = {}
        """The last entry and its result, by resource type and key. Equal entries share one result."""
        self.shown: dict[tuple[Owner, frozenset[str]], tuple[list[DescribeConfigsResourceResult], int]] = {}
        """The results and their approximate size in bytes, by resource and set of requested keys."""
        self.repeated = RepeatedSize()


class DescribeConfigsHandler:
    """Handler of DescribeConfigs (API 32). The description of the node's own configuration has the keys of all its
    roles.
    """

    def __init__(self, node_id: int, broker: Described, troubles: Callable[[], str] = str) -> None:
        """`troubles` returns the present value of `odradek.troubled.log.dirs`
        (`odradek.serving.disk_troubles`).
        """
        self._node_id = node_id
        self._broker = broker
        self._troubles = troubles
        self._inherited: dict[str, ConfigEntry] = {}
        """The entries that all topics inherit, by key. They are computed again when this node's configuration
        changes.
        """
        self._inherited_from: BrokerConfigLayers | None = None

    def handle(self, context: Context, request: DescribeConfigsRequest) -> Result:
        return in_slices(self._broker.long_work, self._answer(request))

    def _answer(self, request: DescribeConfigsRequest) -> Work[DescribeConfigsResponse]:
        # As in Kafka, a single resource of an unknown type makes the whole request fail.
        sound = all(resource.resource_type in RESOURCES for resource in request.resources)
        answered = _Answered()
        results = []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            try:
                if not sound:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                shown, units = self._describe(resource, request, answered)
                if shown is None:
                    results.append(DescribeConfigsResult(TOO_LARGE, TOO_LARGE_MESSAGE, kind, name, []))
                else:
                    results.append(DescribeConfigsResult(ErrorCode.NONE, "", kind, name, shown))
            except KafkaError as error:
                results.append(DescribeConfigsResult(error.code, error.message, kind, name, []))
                units = REFUSED_UNITS
            yield units
        return DescribeConfigsResponse(0, results)

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest, answered: _Answered
    ) -> tuple[list[DescribeConfigsResourceResult] | None, int]:
        """Describe a resource. Returns its results, and the cost in units of work. Equal resources share
        results.

        The results are None if the request repeats resources so often that the response would be too large.
        Raises `KafkaError`.
        """
        kind, name = resource.resource_type, resource.resource_name
        wanted = frozenset(resource.configuration_keys or ())
        of_none = kind in NAMED_FREELY and name and (kind, name) not in self._broker.image.configs
        owner = (kind, None if of_none else name)
        before = answered.shown.get((owner, wanted))
        if before is not None:
            return (before[0] if answered.repeated.has_room(before[1]) else None), 1
        entries = answered.entries.get(owner)
        if entries is None:
            entries = answered.entries[owner] = self._entries(kind, name)
        shown = [
            self._show(entry, kind, request, answered)
            for entry in entries
            if not wanted or entry.name in wanted
        ]
        size = sum(ENTRY_BYTES + len(each.documentation or "") for each in shown)
        answered.shown[owner, wanted] = shown, size
        return shown, RESOURCE_UNITS

    def _show(
        self, entry: ConfigEntry, kind: int, request: DescribeConfigsRequest, answered: _Answered
    ) -> DescribeConfigsResourceResult:
        before = answered.each.get((kind, entry.name))
        if before is not None and before[0] is entry:
            return before[1]
        doc = _doc(kind, entry.name, request.include_documentation)
        result = _shown(entry, request.include_synonyms, doc)
        answered.each[kind, entry.name] = entry, result
        return result

    def _entries(self, kind: int, name: str) -> list[ConfigEntry]:
        if kind == RESOURCE_TOPIC:
            return self._topic_entries(name)
        if kind == RESOURCE_BROKER:
            return self._broker_entries(name)
        if kind == RESOURCE_BROKER_LOGGER:
            return self._logger_entries(name)
        overrides = self._broker.image.configs.get((kind, name), {})
        if kind == RESOURCE_CLIENT_METRICS:
            if not name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
                )
            return describe_client_metrics(overrides)
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group_config(overrides, self._broker.config_layers)

    def _topic_entries(self, topic: str) -> list[ConfigEntry]:
        reason = invalid_topic_name_reason(topic)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        image = self._broker.image
        if image.topics.get(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        layers = self._broker.config_layers
        if layers != self._inherited_from:
            self._inherited, self._inherited_from = inherited_topic_entries(layers), layers
        return with_overrides(self._inherited, image.topic_configs(topic))

    def _broker_entries(self, name: str) -> list[ConfigEntry]:
        if name:
            self._check_broker_id(name, "Unexpected broker id, expected {} or empty string, but received {}")
        entries = describe_broker_config(self._broker.config_layers, for_all=not name)
        if not name:
            return entries
        # The metadata may have an outdated list of troubled directories, because a full disk may delay this
        # node's own metadata log.
        stored = self._broker.image.broker_configs(int(name))
        answered = {key: stored.get(key, "") for key in _MARKS}
        answered[TROUBLED_LOG_DIRS] = self._troubles()
        own = [
            ConfigEntry(key, value, ConfigSource.DYNAMIC_BROKER_CONFIG, False, True, CONFIG_TYPES["string"])
            for key, value in answered.items()
            if value
        ]
        return [*(each for each in entries if each.name not in answered), *own]

    def _logger_entries(self, name: str) -> list[ConfigEntry]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        self._check_broker_id(name, "Unexpected broker id, expected {} but received {}")
        return [
            ConfigEntry(logger, level, ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, False, False, 0)
            for logger, level in self._broker.log_levels.described().items()
        ]

    def _check_broker_id(self, name: str, otherwise: str) -> None:
        own = self._node_id
        number = parse_node_id(name)
        if number is None:
            message = f"Broker id must be an integer, but it is: {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if number != own:
            raise KafkaError(ErrorCode.INVALID_REQUEST, otherwise.format(own, name))


def _doc(kind: int, name: str, wanted: bool) -> str | None:
    if kind == RESOURCE_BROKER_LOGGER:
        return ""
    return config_doc(_DOC_SCOPES[kind], name) if wanted else None


def _shown(entry: ConfigEntry, with_synonyms: bool, doc: str | None) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if with_synonyms else ()
    return DescribeConfigsResourceResult(
        entry.name,
        entry.value,
        entry.read_only,
        entry.source,
        entry.sensitive,
        [DescribeConfigsSynonym(synonym.name, synonym.value, synonym.source) for synonym in synonyms],
        entry.type,
        doc,
    )


class ListConfigResourcesHandler:
    """Handler of ListConfigResources (API 74, KIP-1142). Version 0 lists client metrics subscriptions only."""

    def __init__(self, broker: Described) -> None:
        self._broker = broker

    def handle(self, context: Context, request: ListConfigResourcesRequest) -> Result:
        kinds = frozenset(request.resource_types)
        if context.api_version < LIST_CONFIG_RESOURCES_KINDS:
            kinds = frozenset((RESOURCE_CLIENT_METRICS,))
        elif not kinds.issubset(RESOURCES):
            return ListConfigResourcesResponse(0, ErrorCode.UNSUPPORTED_VERSION, [])
        found = [
            ConfigResource(name, kind)
            for kind in RESOURCES
            if kind in kinds or not kinds
            for name in self._names(kind)
        ]
        return ListConfigResourcesResponse(0, ErrorCode.NONE, found)

    def _names(self, kind: int) -> list[str]:
        image = self._broker.image
        if kind == RESOURCE_TOPIC:
            return sorted(image.topics)
        if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER):
            return [str(broker_id) for broker_id, broker in image.brokers.items() if not broker.fenced]
        return sorted(name for own, name in image.configs if own == kind)
