"""The decisions topic, which stores the progress of exactly-once writes. The driver creates and checks the topic, and
both driver and tasks read it. SHELL.

Its markers say which batch each task of each query has committed (`markers.py`). The topic is compacted: a marker
stays until its task writes the next one. Segments are small, because a new process reads a whole partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import attrs

from odradek.client.admin.admin_configs import ConfigResource, ResourceType
from odradek.client.admin.admin_topics import NewTopic
from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import ClientError, broker_error, error_code, is_retriable
from odradek.client.shells.blocking import Client
from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC
from odradek.spark.delivery.markers import MarkerLog, partition_of
from odradek.spark.delivery.two_phase import Decision, last_of
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Decisions", "new_topic"]

_PARTITIONS = 8
_REPLICAS = 3
"""The number of replicas of the topic; fewer if there are fewer brokers. The brokers' default is a single
replica, with which one broken disk would lose the progress. Kafka's own topics of this kind also have three
replicas.
"""
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "producer",
    # If an unclean election lost a marker but kept its rows, the rows would be written again.
    "unclean.leader.election.enable": "false",
}
_SAFE = {"min.insync.replicas": "2"}
"""A setting that is added if the topic has three replicas. Each acknowledged marker is then on at least two disks."""
_READ_COMMITTED = 1
_FETCH_BYTES = 4 << 20
_FETCH_WAIT_MS = 500
_TIMEOUT_MS_MAX = "transaction.max.timeout.ms"
_LOGS_MAX = 64
_AGAIN_SECONDS = 0.05


@attrs.define
class _Answer:
    """The part of a Fetch response that is about one partition."""

    records: memoryview
    last_stable_offset: int
    aborted: list[tuple[int, int]]


def new_topic(name: str, brokers: int) -> NewTopic:
    """Describe the decisions topic for a cluster with `brokers` brokers."""
    if brokers < _REPLICAS:
        return NewTopic(name, _PARTITIONS, -1, configs=_SETTINGS)
    return NewTopic(name, _PARTITIONS, _REPLICAS, configs={**_SETTINGS, **_SAFE})


class Decisions:
    """A client for the decisions topic of a cluster. Only one thread at a time may use it. Use it as a context
    manager, or call `close`.
    """

    def __init__(self, properties: Mapping[str, str], topic: str = DECISIONS_TOPIC) -> None:
        settings = ProducerSettings.from_properties(properties)
        self.topic = topic
        self.timeout = settings.max_block_ms / 1000
        """Seconds that a request may take with its retries."""
        config = attrs.evolve(settings.client_config(), api_timeout=self.timeout)
        self.client = Client(properties["bootstrap.servers"], config=config, timeout_ms=settings.max_block_ms)
        self.begins: dict[str, int] = {}
        """The offset at which the progress of a query begins at the earliest, if it is known."""
        self._logs: dict[tuple[bytes, str], MarkerLog] = {}
        """The markers of each query that were read so far, up to the last stable offset; the key is (topic id,
        query).
        """

    def __enter__(self) -> Decisions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float | None = None) -> None:
        """Close the connections at once. `timeout` has no effect."""
        self.client.close()

    # Called by the driver, before a query starts

    def make(self) -> None:
        """Create the topic if it does not exist, and check that it is compacted. Raises `ValueError`, `KafkaError`,
        `ClientError`.
        """
        cluster = self.client.metadata([self.topic])
        if self.topic not in cluster.topics:
            [created] = self.client.admin.create_topics([new_topic(self.topic, len(cluster.brokers))])
            error = created.error
            exists = isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS
            if error is not None and not exists:
                raise error
        [found] = self.client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, self.topic)])
        if found.error is None and found["cleanup.policy"].value != "compact":
            raise ValueError(
                f"the topic '{self.topic}' has cleanup.policy={found['cleanup.policy'].value}, so it "
                "would lose the progress of queries: set cleanup.policy=compact."
            )

    def transaction_timeout_max_ms(self) -> int | None:
        """Return the broker's `transaction.max.timeout.ms`; None if the broker does not report it."""
        broker = min(self.client.metadata([]).brokers)
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        [found] = self.client.admin.describe_configs([resource], [_TIMEOUT_MS_MAX])
        values = [entry.value for entry in found.entries if entry.name == _TIMEOUT_MS_MAX]
        return int(values[0]) if values and values[0] else None

    # Markers

    def key_of(self, query: str) -> TopicPartition:
        """Return the partition that has a query's markers. Raises `KafkaError`, `ClientError`."""
        if self.topic not in self.client.core.cluster.topics:
            self.client.metadata([self.topic])
        partitions = len(self.client.core.cluster.topic(self.topic).partitions)
        return TopicPartition(self.topic, partition_of(query, partitions))

    def end_of(self, query: str) -> tuple[TopicPartition, int]:
        """Return the partition that has a query's markers, and the partition's current high watermark. Raises as
        `key_of` does.
        """
        key = self.key_of(query)
        return key, self.client.list_offsets({key: LATEST})[key].offset

    def read(self, query: str, key: TopicPartition, end: int, *, beside_own: bool = False) -> MarkerLog:
        """Read a query's markers up to the offset `end`, even those in open transactions. Raises `KafkaError`,
        `ClientError`, `ProgressError`.

        With `beside_own` the caller has an open transaction itself, so little can have become stable since the last
        read.
        """
        identity = self.client.core.cluster.topic(self.topic).topic_id, query
        log = self._logs.pop(identity, None)
        if log is None or log.position > end:
            start = self.begins.get(query)
            if start is None:
                start = self.client.list_offsets({key: EARLIEST})[key].offset
            log = MarkerLog(query, start)
            beside_own = False
        while log.position < end and not beside_own:
            answer = self._fetch(key, log.position, _READ_COMMITTED)
            before = log.position
            log.add_stable(answer.records, answer.aborted)
            if log.position == before and answer.last_stable_offset <= before:
                break
        while len(self._logs) >= _LOGS_MAX:
            self._logs.pop(next(iter(self._logs)))
        self._logs[identity] = log
        if log.position >= end:
            return log
        log = log.copy()
        while log.position < end:
            log.add_unstable(self._fetch(key, log.position, 0).records, end)
        return log

    def progress(self, query: str) -> MarkerLog | None:
        """Read a query's markers up to the current high watermark. Return None if the topic does not exist. Raises as
        `read` does.
        """
        try:
            key, end = self.end_of(query)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise
        return self.read(query, key, end)

    def last(self, query: str, batch: int) -> Decision | None:
        """Return a query's last decision below the current high watermark. `batch` is the batch that will be
        written. Raises as `read` does.
        """
        key, end = self.end_of(query)
        log = self.read(query, key, end)
        return last_of(query, batch, log.decision, log.markers, log.completion)

    def last_settled(self, query: str, batch: int, seconds: float) -> Decision | None:
        """Return a query's last decision, as `last` does. If it is the incomplete decision of an earlier
        batch, read again for up to `seconds`.

        The next batch may begin before a completed decision can be read. The reason is that the coordinator
        answers the driver's FINISH before the transaction's control markers are in the log (KIP-98). The
        markers are late if a leader moves.
        """
        deadline = time.monotonic() + seconds
        while True:
            decision = self.last(query, batch)
            is_open = decision is not None and not decision.is_complete and decision.batch < batch
            if not is_open or time.monotonic() > deadline:
                return decision
            time.sleep(_AGAIN_SECONDS)

    def _fetch(self, key: TopicPartition, position: int, isolation_level: int) -> _Answer:
        """Fetch records from the partition's leader. Retriable errors are retried for `max.block.ms`."""
        deadline, failures = time.monotonic() + self.timeout, 0
        while True:
            try:
                return self.client.run(self._ask(key, position, isolation_level))
            except (ClientError, KafkaError) as error:
                if not is_retriable(error) or time.monotonic() > deadline:
                    raise
            self.client.run(self._pause(failures))
            failures += 1

    def _pause(self, failures: int) -> Operation[None]:
        core = self.client.core
        yield Wait(until=core.now + core.backoff(failures))
        yield from refresh_metadata(core, [self.topic], timeout=self.timeout)

    def _ask(self, key: TopicPartition, position: int, isolation_level: int) -> Operation[_Answer]:
        core = self.client.core
        topic_id = core.cluster.topic(key.topic).topic_id
        call = core.call(
            self._request(key, topic_id, position, isolation_level),
            node=core.cluster.leader(key.topic, key.partition),
            deadline=core.now + core.config.request_timeout,
            version_max=None if topic_id != NO_TOPIC_ID else FETCH_TOPIC_IDS - 1,
        )
        yield Wait([call])
        response = call.result()
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            [topic] = response.responses
            [answer] = topic.partitions
            code = error_code(answer.error_code)
        if code is not ErrorCode.NONE:
            raise broker_error(code, None, str(key))
        aborted = sorted(
            ((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()),
            key=lambda each: each[1],
        )
        return _Answer(memoryview(answer.records or b""), answer.last_stable_offset, aborted)

    def _request(self, key: TopicPartition, topic_id: bytes, position: int, isolation_level: int) -> Any:
        from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        partition = FetchPartition(
            partition=key.partition,
            current_leader_epoch=self.client.core.cluster.partition(key.topic, key.partition).leader_epoch,
            fetch_offset=position,
            partition_max_bytes=_FETCH_BYTES,
        )
        return FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=0 if isolation_level == _READ_COMMITTED else 1,
            max_bytes=_FETCH_BYTES,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic=key.topic, topic_id=topic_id, partitions=[partition])],
        )
