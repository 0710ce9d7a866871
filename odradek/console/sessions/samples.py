"""Samples of a cluster: what its nodes answer at one moment. Two of them give rates. SHELL.

All views of a user share them. A sample is taken when a view wants one that is newer than `FRESH_SECONDS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from odradek.cli.health.picture import Picture, look_at_cluster
from odradek.client.errors import ClientError
from odradek.client.shells.admin_client import Admin
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["FRESH_SECONDS", "Sample", "Samples"]

FRESH_SECONDS = 1.0
_APART_SECONDS_MIN = 1.5
"""The least number of seconds between two samples that give a rate."""
_APART_SECONDS_MAX = 120.0
"""An older sample gives no rate, since nobody has looked for a while."""
_ENDS_MAX = 20_000
"""The greatest number of partitions whose ends are asked."""


class Sample(NamedTuple):
    """The cluster at one moment. `at` is in seconds of the monotonic clock."""

    at: float
    picture: Picture
    ends: Mapping[TopicPartition, int]
    """The end offset of each partition that answered."""


class _Asker(NamedTuple):
    """What the picture of the command line asks: an object with an admin."""

    admin: Admin


class Samples:
    """The newest sample, and an older one to compare it with."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = threading.Lock()
        self._taken: list[Sample] = []

    def latest(self) -> tuple[Sample | None, Sample]:
        """Return an older sample (None if there is none for a rate) and the newest, which may be taken for this call.

        Raises `KafkaError` and `ClientError` if the cluster cannot describe itself.
        """
        with self._lock:
            if not self._taken or time.monotonic() - self._taken[-1].at > FRESH_SECONDS:
                self._keep(self._take())
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
        ends: dict[TopicPartition, int] = {}
        try:
            spans = self._admin.offset_spans(keys, timeout=3.0) if keys else {}
            ends = {key: span.end for key, span in spans.items() if not isinstance(span, Exception)}
        except (KafkaError, ClientError):
            # The state is worth showing without rates.
            ends = {}
        return Sample(at, picture, ends)
