"""An operator that changes configurations of topics, of brokers and of their loggers. PORTED.

At the end every broker must describe the values that were last acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.client.admin.admin_configs import (
    AlterConfig,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from odradek.client.errors import ClientError
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from sim.load.operators.duty import CALL_SECONDS, Duty, Possible, Site

TOPIC_VALUES: Mapping[str, Sequence[str]] = {
    "min.insync.replicas": ("1", "2", "2", "3"),
    "compression.type": ("producer", "gzip", "snappy", "lz4", "zstd", "uncompressed"),
    "max.message.bytes": ("2000000", "4000000"),
    "flush.messages": ("1", "7", "9223372036854775807"),
    "retention.ms": ("-1", "604800000"),
    "retention.bytes": ("-1", "1000000000"),
    "leader.replication.throttled.replicas": ("*", ""),
    "follower.replication.throttled.replicas": ("*", ""),
}
"""The values to choose from, by key. With these values retention deletes no record of the workload, since all records
are small and young enough.
"""
BROKER_VALUES: Mapping[str, Sequence[str]] = {
    "leader.replication.throttled.rate": ("1000000", "10000000"),
    "follower.replication.throttled.rate": ("1000000", "10000000"),
    "max.connections": ("200", "2147483647"),
    "max.connections.per.ip": ("100", "2147483647"),
    "message.max.bytes": ("2000000", "4000000"),
    "log.retention.ms": ("-1", "604800000"),
    "log.flush.interval.messages": ("5", "9223372036854775807"),
    "num.replica.fetchers": ("1", "2"),
}
LOG_LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
REFUSED = (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
"""Error codes after which certainly nothing was changed."""
_TOPICS_SHARE = 0.6

__all__ = ["Settings"]

_Key = tuple[ResourceType, str, str]


class Settings(Duty):
    """An operator that changes the configuration of the workload's topics, and of all brokers."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._values: dict[_Key, Possible[str | None]] = {}

    async def step(self) -> None:
        draw = self.random.random()
        if draw < _TOPICS_SHARE:
            await self._set(ResourceType.TOPIC, self.random.choice(list(self.load.topics)), TOPIC_VALUES)
        elif draw < 0.9:
            await self._set(ResourceType.BROKER, self._any_broker(), BROKER_VALUES)
        else:
            await self._set_log_level()

    def _any_broker(self) -> str:
        return str(self.random.choice(self.cluster.brokers).config.node_id)

    async def _set(self, kind: ResourceType, name: str, values: Mapping[str, Sequence[str]]) -> None:
        config = self.random.choice(list(values))
        value = self.random.choice(values[config])
        if config == "min.insync.replicas":
            value = str(min(int(value), self.site.replicas))
        possible = self._values.setdefault((kind, name, config), Possible(None))
        try:
            await self._alter(kind, name, config, value)
        except KafkaError as error:
            if error.code not in REFUSED:
                possible.ask(value)
            raise
        except ClientError:
            possible.ask(value)
            raise
        possible.acknowledge(value)

    async def _set_log_level(self) -> None:
        """Change a log level of a process. The level is lost when the process ends, so it is not checked."""
        broker = self._any_broker()
        logger = self.random.choice(("root", "odradek", "kafka.log.LogCleaner"))
        await self._alter(ResourceType.BROKER_LOGGER, broker, logger, self.random.choice(LOG_LEVELS))

    async def _alter(self, kind: ResourceType, name: str, config: str, value: str) -> None:
        resource = ConfigResource(kind, name)
        changes = {resource: [AlterConfig(config, value)]}
        altering = incremental_alter_configs(self.client.core, changes, timeout=CALL_SECONDS)
        ((_, error),) = await self.client.run(altering)
        if error is not None:
            raise error

    async def check(self) -> None:
        await self.must_hold(self._wrong)

    async def _wrong(self) -> str | None:
        asked = sorted({(kind, name) for kind, name, _ in self._values})
        for member in self.cluster.brokers:
            node_id = member.config.node_id
            for kind, name in asked:
                if kind is ResourceType.BROKER and name != str(node_id):
                    continue
                there = await self._described(node_id, kind, name)
                for (of_kind, of_name, config), possible in self._values.items():
                    if (of_kind, of_name) != (kind, name) or possible.allows(None):
                        continue  # nothing was acknowledged
                    if not possible.allows(there.get(config)):
                        told = f"{member.name} says {there.get(config)!r}, acknowledged was {possible}"
                        return f"{config} of {kind.name} {name}: {told}"
        return None

    async def _described(self, node_id: int, kind: ResourceType, name: str) -> dict[str, str | None]:
        asked = DescribeConfigsRequest(resources=[DescribeConfigsResource(int(kind), name, None)])
        answer = await self.client.request(asked, node=node_id)
        (result,) = answer.results
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), f"{kind.name} {name}")
        return {each.name: each.value for each in result.configs}
