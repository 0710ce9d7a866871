"""Samples of a cluster: what its nodes answer at one moment. Two of them give rates. SHELL.

All views of a user share them. A new sample is taken when the last one is older than `FRESH_SECONDS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from odradek.cli.health.picture import Picture, look_at_cluster
from odradek.client.admin.admin_offsets import offsets_at
from odradek.client.core.partition_offsets import LATEST
from odradek.client.errors import ClientError
from odradek.client.shells.admin_client import Admin
from odradek.client.shells.blocking import Client
from odradek.console.sessions.kept_values import LastFailure
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["FRESH_SECONDS", "Sample", "Samples", "growth_by_broker", "records_by_partition"]

FRESH_SECONDS = 1.0
_FRESH_SHARE = 4.0
"""A sample counts as new for this many times the time that it took to take it."""
_APART_SECONDS_MIN = 1.5
"""The least number of seconds between two samples that give a rate."""
_APART_SECONDS_MAX = 120.0
"""An older sample gives no rate, since nobody has looked for a while."""
_ENDS_SECONDS_MAX = 3.0
_ENDS_MAX = 20_000
"""The greatest number of partitions whose ends are asked."""


class Sample(NamedTuple):
    """The cluster at one moment. `at` is in seconds of the monotonic clock."""

    at: float
    picture: Picture
    ends: Mapping[TopicPartition, int]
    """The end offset of each partition that answered."""
    ends_at: float
    """When the ends were asked. (The picture knows when its log directories were.)"""


class _Asker(NamedTuple):
    """What the picture of the command line asks: an object with an admin."""

    admin: Admin


class Samples:
    """The newest sample, and an older one to compare it with."""

    def __init__(self, admin: Admin, open_client: Callable[[], Client]) -> None:
        """`open_client` makes the client that asks for the ends of partitions, which the samples close."""
        self._admin = admin
        self._open_client = open_client
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._fresh_seconds = FRESH_SECONDS
        self._taken: list[Sample] = []
        self._failure = LastFailure()

    def close(self) -> None:
        """Close the connections. A sample that is being taken ends first."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def latest(self) -> tuple[Sample | None, Sample]:
        """Return an older sample (None if there is none for a rate) and the newest, which may be taken for this call.

        Raises `KafkaError` and `ClientError` if the cluster cannot describe itself.
        """
        asked_at = time.monotonic()
        with self._lock:
            if not self._taken or time.monotonic() - self._taken[-1].at > self._fresh_seconds:
                self._failure.raise_since(asked_at)
                began = time.monotonic()
                try:
                    self._keep(self._take())
                except Exception as error:
                    self._failure.note(error, time.monotonic())
                    raise
                self._failure.forget()
                # In a large cluster, samples are expensive, so that they are used for longer.
                self._fresh_seconds = max(FRESH_SECONDS, _FRESH_SHARE * (time.monotonic() - began))
            now = self._taken[-1]
            before = None
            for each in self._taken:
                if _APART_SECONDS_MIN <= now.at - each.at <= _APART_SECONDS_MAX:
                    before = each
            return before, now

    def _keep(self, sample: Sample) -> None:
        """Keep three samples: with the newest, one of the others is old enough for a rate."""
        self._taken = [*self._taken[-2:], sample]

    def _take(self) -> Sample:
        at = time.monotonic()
        picture = look_at_cluster(_Asker(self._admin), 10.0)
        keys = [
            TopicPartition(topic.name, index)
            for topic in picture.topics
            for index, each in sorted(topic.partitions.items())
            if each.leader >= 0 and each.leader not in picture.silent
        ][:_ENDS_MAX]
        ends_at = time.monotonic()
        return Sample(at, picture, self._ends(keys), ends_at)

    def _ends(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask the leaders for the ends of these partitions: one request to each. Those without an answer are left out."""
        if not keys:
            return {}
        if self._client is None:
            self._client = self._open_client()
        try:
            deadline = time.monotonic() + _ENDS_SECONDS_MAX
            found = self._client.run(offsets_at(self._client.core, dict.fromkeys(keys, LATEST), deadline))
        except (KafkaError, ClientError):
            # The state is worth showing without rates.
            return {}
        return {key: end for key, end in found.items() if isinstance(end, int)}


def records_by_partition(before: Sample | None, now: Sample) -> dict[TopicPartition, float]:
    """Return the records per second of each partition whose leader answered both times."""
    if before is None:
        return {}
    seconds = now.ends_at - before.ends_at
    return {
        key: max(0, end - before.ends[key]) / seconds for key, end in now.ends.items() if key in before.ends
    }


def growth_by_broker(before: Sample | None, now: Sample) -> dict[int, float]:
    """Return the bytes per second by which the logs of each broker grow; negative while segments are deleted.

    A broker that did not answer both times is left out, and so is a log directory that failed in between.
    """
    if before is None:
        return {}
    old, new = _sizes(before.picture), _sizes(now.picture)
    seconds = now.picture.log_dirs_at - before.picture.log_dirs_at
    growth: dict[int, float] = {}
    for (broker, path), size in new.items():
        if (broker, path) in old:
            growth[broker] = growth.get(broker, 0.0) + (size - old[broker, path]) / seconds
    return growth


def _sizes(picture: Picture) -> dict[tuple[int, str], int]:
    return {
        (each.broker, directory.path): directory.size
        for each in picture.log_dirs
        if each.error is None
        for directory in each.directories
        if directory.error is None
    }
