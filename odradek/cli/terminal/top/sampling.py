"""The samples of `odradek top`: what the cluster answers at one moment, and the thread that asks again and again."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

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

T = TypeVar("T")


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
    from odradek.wire.topic_partition import TopicPartition

    picture = look_at_cluster(client, timeout)
    keys = [
        TopicPartition(topic.name, index)
        for topic in picture.topics
        for index, each in sorted(topic.partitions.items())
        if each.leader >= 0
    ][:_PARTITIONS_MAX]
    missing: dict[str, None] = {}
    spans = _asked(lambda: client.admin.offset_spans(keys, timeout=timeout), missing) if keys else None
    ends = {key: span.end for key, span in (spans or {}).items() if not isinstance(span, Exception)}
    groups = _asked(lambda: client.admin.list_groups(timeout=timeout), missing) or []
    asked = {group.group_id: None for group in groups[:_GROUPS_MAX]}
    offsets = (
        _asked(lambda: client.admin.list_group_offsets(asked, timeout=timeout), missing) if asked else None
    )
    committed = {
        found.group_id: {key: each.offset for key, each in found.offsets.items() if each.offset >= 0}
        for found in offsets or ()
    }
    alive = [node.node_id for node in picture.cluster.brokers if node.node_id not in picture.cluster.fenced]
    clients = _asked(lambda: client.admin.describe_clients(alive, timeout=timeout), missing) or []
    return Sample(time.monotonic(), picture, ends, groups, committed, clients, "; ".join(missing))


def _asked(question: Callable[[], T], missing: dict[str, None]) -> T | None:
    """Call `question` and return its answer. Return None if the cluster cannot answer now, and add the reason to
    `missing`.
    """
    from odradek.client.errors import ClientError
    from odradek.wire.errors import KafkaError

    try:
        return question()
    except (KafkaError, ClientError) as error:
        # The other parts are worth showing alone. The missing part may come with the next sample.
        missing[str(error)] = None
        return None


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
