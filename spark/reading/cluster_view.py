"""The driver's requests to the cluster: partitions, their start and end offsets, offsets for timestamps. SHELL.

One blocking client makes all requests. This client is opened only at the first request, because readers are pickled
before they are used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import attrs

from odradek.client.core.partition_offsets import EARLIEST, LATEST, ListedOffset, list_offsets
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import BrokerUnavailable, ClientError, is_retriable
from odradek.client.shells.blocking import Client
from odradek.spark.reading.read_errors import ReadError
from odradek.spark.source_options import Bound, OptionError, SourceOptions
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["ClusterView", "Known", "new_client"]

T = TypeVar("T")
_READ_COMMITTED = 1
_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@attrs.frozen
class Known:
    """The topic id and leader epoch of a partition to read."""

    topic_id: bytes
    leader_epoch: int


def new_client(options: SourceOptions) -> Client:
    """Make a client from the options `kafka.*`. Raises `OptionError` for a file that cannot be used."""
    settings = options.consumer
    try:
        return Client(
            options.properties["bootstrap.servers"],
            config=settings.client_config(fail_fast=True),
            timeout_ms=settings.default_api_timeout_ms,
        )
    except ValueError as error:
        raise OptionError(f"an option kafka.* is not valid: {error}") from None


class ClusterView:
    """The driver's requests to the cluster. Only one thread at a time may use it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Client | None = None
        committed = options.consumer.isolation_level == "read_committed"
        self._isolation_level = _READ_COMMITTED if committed else 0

    @property
    def client(self) -> Client:
        """The blocking client, connected at its first use."""
        if self._client is None:
            self._client = new_client(self._options)
        return self._client

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def patiently(self, ask: Callable[[], T]) -> T:
        """Call `ask`, and repeat it after retriable errors, as often as `fetchOffset.numRetries` allows.

        Raises:
            ReadError: no broker could be reached.
        """
        for _ in range(self._options.retries):
            try:
                return ask()
            except (ClientError, KafkaError) as error:
                if not is_retriable(error):
                    raise
                self.close()
                time.sleep(self._options.retry_interval_ms / 1000)
        try:
            return ask()
        except BrokerUnavailable as error:
            where = self._options.properties["bootstrap.servers"]
            raise ReadError(
                f"no broker answers: {error} (check kafka.bootstrap.servers={where}, "
                "kafka.security.protocol and kafka.ssl.*)"
            ) from None

    # Partitions

    def partitions(self, *, all_must_exist: bool = True) -> dict[TopicPartition, Known]:
        """List the partitions to read, from fresh metadata, sorted. Without `all_must_exist`, missing partitions are
        left out.

        Raises:
            ReadError: a topic or a partition that was named does not exist.
        """
        options = self._options
        names = options.topics
        if options.assigned is not None:
            names = tuple(dict.fromkeys(topic for topic, _ in options.assigned))
        cluster = self.client.run(refresh_metadata(self.client.core, names, timeout=self.client.timeout))
        if options.pattern is not None:
            wanted = re.compile(options.pattern)
            names = tuple(
                name
                for name, topic in cluster.topics.items()
                if not topic.is_internal and wanted.fullmatch(name)
            )
        found: dict[TopicPartition, Known] = {}
        for name in sorted(names or ()):
            if cluster.topic_errors.get(name, _UNKNOWN) is _UNKNOWN and name not in cluster.topics:
                if all_must_exist:
                    raise ReadError(f"topic {name} cannot be read: it does not exist")
                continue
            topic = cluster.topic(name)
            for index, partition in sorted(topic.partitions.items()):
                found[TopicPartition(name, index)] = Known(topic.topic_id, partition.leader_epoch)
        if options.assigned is None:
            return found
        for key in options.assigned:
            if key not in found and all_must_exist:
                raise ReadError(f"the option assign names {key}, and this partition does not exist")
        return {key: found[key] for key in options.assigned if key in found}

    # Offsets

    def listed(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """Look up the offsets for times (or `EARLIEST`, `LATEST`). With the isolation level read_committed, `LATEST`
        is the last stable offset.
        """
        if not wanted:
            return {}
        timeout = self.client.timeout
        return self.client.run(
            list_offsets(self.client.core, wanted, timeout=timeout, isolation_level=self._isolation_level)
        )

    def offsets(self, keys: Iterable[TopicPartition], what: int) -> dict[TopicPartition, int]:
        """Look up the `EARLIEST` or the `LATEST` offset of these partitions."""
        return {key: found.offset for key, found in self.listed(dict.fromkeys(keys, what)).items()}

    def resolve(
        self, bound: Bound, keys: Iterable[TopicPartition], *, is_start: bool
    ) -> dict[TopicPartition, int]:
        """Resolve a bound of the query to an offset for each partition.

        Raises:
            OptionError: the bound names other partitions than the query reads.
            ReadError: no record has the requested time or a later one, and the query must start at such a record.
        """
        keys = list(keys)
        if bound.named is not None and bound.named != frozenset(keys):
            other = sorted(bound.named ^ frozenset(keys))[0]
            there = "is not read" if other in bound.named else "is missing"
            raise OptionError(
                f"{bound.what} must name exactly the partitions that the query reads: "
                f"{other[0]}-{other[1]} {there}"
            )
        if bound.everywhere is not None:
            return self.offsets(keys, bound.everywhere)
        if bound.offsets is not None:
            special = {key: offset for key, offset in bound.offsets.items() if offset < 0}
            return {**bound.offsets, **{key: each.offset for key, each in self.listed(special).items()}}
        times = (
            bound.timestamps if bound.timestamps is not None else dict.fromkeys(keys, bound.timestamp or 0)
        )
        return self._at_times(bound, times, is_start=is_start)

    def _at_times(
        self, bound: Bound, times: Mapping[TopicPartition, int], *, is_start: bool
    ) -> dict[TopicPartition, int]:
        found = {key: each.offset for key, each in self.listed(times).items()}
        without = [key for key, offset in found.items() if offset < 0]
        if without and is_start and not self._options.without_match_latest:
            raise ReadError(
                f"{without[0]} has no record with the timestamp {times[without[0]]} or later, as {bound.what} "
                "asks for: set startingOffsetsByTimestampStrategy=latest to start at the partition's end instead"
            )
        return found | self.offsets(without, LATEST)

    def first_since(self, keys: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Find the first offset in each partition whose record has the time `timestamp` (milliseconds since 1970) or
        a later one. If there is no such record, the result is the end offset.
        """
        found = {key: each.offset for key, each in self.listed(dict.fromkeys(keys, timestamp)).items()}
        return found | self.offsets([key for key, offset in found.items() if offset < 0], LATEST)

    def earliest(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Find the log start offset of each partition."""
        return self.offsets(keys, EARLIEST)

    def latest(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Find the end offset of each partition, as readers at this isolation level see it."""
        return self.offsets(keys, LATEST)
