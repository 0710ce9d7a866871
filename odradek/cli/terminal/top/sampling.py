"""The samples of `odradek top`: what the cluster answers at one moment, and the thread that asks again and again."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.connecting import connected
from odradek.cli.failure import CliError
from odradek.cli.health.picture import Picture, look_at_cluster

if TYPE_CHECKING:
    from odradek.client.admin import BrokerClients, GroupListing
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["Sample", "Sampler", "take_sample"]

_PARTITIONS_MAX = 5_000
"""The maximum number of partitions whose end offsets are asked in each round."""
_GROUPS_MAX = 500
"""The maximum number of groups whose committed offsets are asked in each round."""
_ASK_SECONDS_MAX = 5.0


class Sample(NamedTuple):
    """The state of the cluster at one moment. `at` is in seconds of the monotonic clock."""

    at: float
    picture: Picture
    ends: Mapping[TopicPartition, int]
    groups: Sequence[GroupListing]
    committed: Mapping[str, Mapping[TopicPartition, int]]
    clients: Sequence[BrokerClients]
    missing: str
    """The reason for which offsets, groups or clients are missing; empty if all parts are there."""


def take_sample(client: Client, timeout: float) -> Sample:
    """Ask the cluster once. Raises `KafkaError` and `ClientError` if it cannot describe itself. Parts without an answer
    are empty.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError
    from odradek.wire.topic_partition import TopicPartition

    picture = look_at_cluster(client, timeout)
    keys = [
        TopicPartition(topic.name, index)
        for topic in picture.topics
        for index, each in sorted(topic.partitions.items())
        if each.leader >= 0
    ][:_PARTITIONS_MAX]
    ends: dict[TopicPartition, int] = {}
    groups: list[GroupListing] = []
    committed: dict[str, dict[TopicPartition, int]] = {}
    clients: list[BrokerClients] = []
    missing = ""
    try:
        if keys:
            spans = client.admin.offset_spans(keys, timeout=timeout)
            ends = {key: span.end for key, span in spans.items() if not isinstance(span, Exception)}
        groups = client.admin.list_groups(timeout=timeout)
        asked = {group.group_id: None for group in groups[:_GROUPS_MAX]}
        for found in client.admin.list_group_offsets(asked, timeout=timeout) if asked else ():
            committed[found.group_id] = {
                key: each.offset for key, each in found.offsets.items() if each.offset >= 0
            }
        alive = [
            node.node_id for node in picture.cluster.brokers if node.node_id not in picture.cluster.fenced
        ]
        clients = client.admin.describe_clients(alive, timeout=timeout)
    except (KafkaError, ClientError) as error:
        # The state of the cluster is worth showing alone. The missing parts may come with the next sample.
        missing = str(error)
    return Sample(time.monotonic(), picture, ends, groups, committed, clients, missing)


class Sampler:
    """A thread that takes samples until it is stopped. The main thread reads `latest`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._samples: tuple[Sample | None, Sample | None] = (None, None)
        self._error: str | None = None
        self.rounds = 0
        self.failure: BaseException | None = None
        """The bug that ended the thread; the main thread raises it."""
        # A daemon, so that a request which still waits does not delay the end of the command.
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Start to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A request that is under way ends with the process."""
        self._stopped.set()

    @property
    def latest(self) -> tuple[Sample | None, Sample | None, str | None]:
        """The sample before the last one, the last one, and the error of the last round, each None if there is none."""
        with self._lock:
            return (*self._samples, self._error)

    def _run(self) -> None:
        try:
            self._sample_on()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.failure = error

    def _sample_on(self) -> None:
        patience = min(self._args.timeout, _ASK_SECONDS_MAX)
        while not self._stopped.is_set():
            try:
                with connected(self._args) as client:
                    while not self._stopped.is_set():
                        self._keep(take_sample(client, patience))
                        self._stopped.wait(self._args.interval)
            except CliError as error:
                with self._lock:
                    self._error = str(error)
                    self.rounds += 1
            self._stopped.wait(self._args.interval)

    def _keep(self, sample: Sample) -> None:
        with self._lock:
            self._samples = (self._samples[1], sample)
            self._error = None
            self.rounds += 1
