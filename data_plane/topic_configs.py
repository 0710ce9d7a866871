"""The configuration of each topic's logs (the topic's values, then the broker's), and this broker's own dynamic
configuration. Both may change at run time. PURE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig, log_config
from odradek.data_plane.newest_image import NewestImage
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.log_levels import LogLevels
from odradek.metadata_quorum.config.typed_settings import setting, settings_of
from odradek.metadata_quorum.image.config_layers import layers_for
from odradek.metadata_quorum.image.metadata_image import MetadataDelta
from odradek.wire.config_resources import RESOURCE_BROKER

SHARED_LOG_CONFIGS_MAX = 10_000


@attrs.frozen
class _BrokerSettings:
    """Settings of the broker that apply to its logs, and that topics cannot override."""

    verifies_transactions: bool = setting("transaction.partition.verification.enable")


class TopicConfigs:
    """The effective configurations of topics, by the newest metadata image. Topics with equal own values
    share one object.
    """

    def __init__(self, node_id: int, newest: NewestImage, file_layers: BrokerConfigLayers) -> None:
        """Take the broker's id, the newest metadata image, and the content of the properties file
        (`file_layers`).
        """
        self._node_id = node_id
        self._newest = newest
        self._file_layers = file_layers
        self._broker_resources = ((RESOURCE_BROKER, str(node_id)), (RESOURCE_BROKER, ""))
        self._shared: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        """The effective configuration for each set of topics' own values."""

    @property
    def broker_layers(self) -> BrokerConfigLayers:
        """The layers of this broker's configuration: its properties file, and the metadata log's values for
        this broker and for all brokers.
        """
        return layers_for(self._newest.image, self._file_layers.static, self._node_id)

    def own(self, topic: str) -> Mapping[str, str]:
        """Return the values that the metadata log has for this topic itself."""
        return self._newest.image.topic_configs(topic)

    def log_config(self, topic: str) -> LogConfig:
        """Return the effective configuration of the logs of a topic."""
        overrides = self.own(topic)
        key = tuple(sorted(overrides.items()))
        config = self._shared.get(key)
        if config is None:
            if len(self._shared) >= SHARED_LOG_CONFIGS_MAX:
                self._shared.clear()
            layers = self.broker_layers
            verifies = settings_of(_BrokerSettings, layers).verifies_transactions
            config = log_config(overrides, layers, verifies_transactions=verifies)
            self._shared[key] = config
        return config

    def concerns_broker(self, delta: MetadataDelta) -> bool:
        """True if this change of metadata may change broker-level values that topics inherit."""
        return delta.features_changed or any(each in delta.changed_configs for each in self._broker_resources)

    def broker_changed(self) -> None:
        """Forget all computed configurations, because the broker's own values have changed."""
        self._shared.clear()


class OwnConfig:
    """The configuration of this broker itself, which requests may describe and change."""

    def __init__(
        self,
        node_id: int,
        newest: NewestImage,
        topics: TopicConfigs,
        log_levels: LogLevels,
        log_dirs: Sequence[LogDir],
    ) -> None:
        self.node_id = node_id
        self._newest = newest
        self._topics = topics
        self._log_dirs = log_dirs
        self.log_levels = log_levels
        self.check_key_stores: Callable[[Mapping[str, str]], Awaitable[str]] | None = None
        """A function that checks the listeners' key and certificate files in this broker's dynamic values.
        Returns the reason for a refusal, or an empty text.
        """

    @property
    def layers(self) -> BrokerConfigLayers:
        """The layers of this broker's configuration; see `TopicConfigs.broker_layers`."""
        return self._topics.broker_layers

    def dynamic(self, *, for_all: bool) -> Mapping[str, str]:
        """Return this broker's dynamic values in the metadata log: if `for_all` is true, the values for all
        brokers, otherwise the values for this broker alone.
        """
        return self._newest.image.broker_configs(None if for_all else self.node_id)

    @property
    def log_dir_paths(self) -> list[str]:
        return [log_dir.path for log_dir in self._log_dirs]
