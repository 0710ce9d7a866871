"""An operator that deletes a topic and creates it again with the same name, each time with another configuration.
PORTED.

Each of these topics is called a life of the name. Records and configurations of earlier lives must not reappear. Every
broker describes exactly the configuration of the last life. The records of the last life must agree with its cleanup
policy and retention:

* A life that keeps everything has all acknowledged records.
* A life that compacts has the newest acknowledged record of each key, or a newer one.
* A life with a retention of one second loses its records, if clocks agree and brokers check retention every few
  seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.load.operators.duty import Site
from sim.load.operators.topics import Life, Name, Topics

KINDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "keep": {"cleanup.policy": ("delete",), "retention.ms": ("-1",), "retention.bytes": ("-1",)},
    "compact": {
        "cleanup.policy": ("compact",),
        "min.cleanable.dirty.ratio": ("0.01",),
        "max.compaction.lag.ms": ("1000", "9223372036854775807"),
    },
    "short": {"cleanup.policy": ("delete",), "retention.ms": ("1000",), "segment.ms": ("500",)},
    "small": {"cleanup.policy": ("delete",), "retention.bytes": ("1000",)},
}
"""For each kind of life, its configuration keys, each with the values to choose from."""
ANY_LIFE: Mapping[str, tuple[str, ...]] = {
    "internal.segment.bytes": ("700", "2000", ""),
    "index.interval.bytes": ("0", ""),
    "file.delete.delay.ms": ("0", "1000", ""),
    "compression.type": ("gzip", "lz4", ""),
    "min.insync.replicas": ("1", "2", "3", ""),
    "max.message.bytes": ("2000000", ""),
    "flush.messages": ("1", ""),
}
"""Further configuration keys that any life may have. The value "" leaves the key out."""
KEYS = 5
DYNAMIC_TOPIC_CONFIG = 1
CHECK_INTERVAL = "log.retention.check.interval.ms"
CHECK_INTERVAL_MS_MAX = 3_000
"""The longest interval of brokers' retention checks, in milliseconds, with which the final checks wait until old
records are removed.
"""
CLOCKS_NEAR_MS = 500

__all__ = ["Lives"]


class Lives(Topics):
    """An operator that creates, writes and deletes its own topics, each with a drawn configuration."""

    prefix = "reborn"
    reset_to = EARLIEST
    calm_seconds_max = 0.6

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._kinds: dict[str, str] = {}
        """The kind of each life, by the text of the life's configuration."""

    def configs_of_next_life(self) -> dict[str, str]:
        choice = self.random.choice
        kind = choice(list(KINDS))
        configs = {key: choice(values) for key, values in KINDS[kind].items()}
        for key, values in ANY_LIFE.items():
            if value := choice(values):
                configs[key] = value
        in_sync = int(configs.get("min.insync.replicas", "1"))
        configs["min.insync.replicas"] = str(min(in_sync, self.site.replicas))
        self._kinds[_text(configs)] = kind
        return configs

    def key_of(self, serial: int) -> bytes | None:
        return b"%d" % (serial % KEYS)

    # -- final checks ------------------------------------------------------------------------------

    async def check(self) -> None:
        for name in self._names:
            life = name.life
            if name.is_known and life is not None:
                await self.must_hold(partial(self._wrong_configs, name, life))
                if self._kinds[_text(life.configs)] == "short" and self._are_records_due():
                    await self.must_hold(partial(self._old_records, name))
        await super().check()

    async def _wrong_configs(self, name: Name, life: Life) -> str | None:
        """Describe a broker on which the topic's configuration differs from the configuration of the last life; None if
        there is no such broker.
        """
        for member in self.cluster.brokers:
            asked = DescribeConfigsRequest([DescribeConfigsResource(2, name.name, None)])
            answer = await self.client.request(asked, node=member.config.node_id)
            (result,) = answer.results
            if result.error_code:
                raise KafkaError(ErrorCode(result.error_code), name.name)
            there = {
                each.name: each.value for each in result.configs if each.config_source == DYNAMIC_TOPIC_CONFIG
            }
            if there != life.configs:
                return f"{name.name} of {life.topic_id.hex()}: {member.name} has {there}, made with {life.configs}"
        return None

    def _are_records_due(self) -> bool:
        """True if all brokers must by now have removed the records of a life with a short retention.

        A broker that runs with its older configuration file checks every five minutes.
        """
        now_ms = self._wall_ms(self.site.name)
        return all(
            member.config.get_int(CHECK_INTERVAL) <= CHECK_INTERVAL_MS_MAX
            and abs(self._wall_ms(member.name) - now_ms) <= CLOCKS_NEAR_MS
            for member in self.cluster.brokers
        )

    def _wall_ms(self, machine: str) -> int:
        return self.world.node_env(machine).clock.wall_ms()

    async def _old_records(self, name: Name) -> str | None:
        known = await self.client.metadata([name.name])
        keys = [TopicPartition(name.name, index) for index in sorted(known.topic(name.name).partitions)]
        starts, ends = await self.offsets(keys, EARLIEST), await self.offsets(keys, LATEST)
        return None if starts == ends else f"{name.name} keeps old records: it begins at {starts} of {ends}"

    def check_partition(
        self, name: Name, life: Life, key: TopicPartition, start: int, values: Mapping[int, bytes]
    ) -> None:
        kind = self._kinds[_text(life.configs)]
        if kind == "keep":
            super().check_partition(name, life, key, start, values)
            return
        self.check_values(name, key, values)
        if start < life.deleted_below.get(key, 0):
            raise SafetyViolation(
                f"{key} begins at {start}, although the records below {life.deleted_below} were deleted"
            )
        for offset, value in life.acknowledged.get(key, {}).items():
            if offset < start or values.get(offset) == value:
                continue
            newer = (
                each
                for at, each in values.items()
                if at > offset and _number(each) % KEYS == _number(value) % KEYS
            )
            if kind != "compact" or offset in values or next(newer, None) is None:
                raise SafetyViolation(
                    f"{key}: {value!r} was acknowledged at {offset}, {values.get(offset)!r} is there in a life that should {kind}"
                )


def _text(configs: Mapping[str, str]) -> str:
    return repr(sorted(configs.items()))


def _number(value: bytes) -> int:
    return int(value.split(b":")[1])
