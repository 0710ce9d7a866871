"""Quotas of metadata changes (KIP-599): created and deleted partitions, and changes of delegation tokens, per
second. PURE.

The active controller keeps a token bucket for each client with a quota of `controller_mutation_rate`. The
buckets are soft state, and a new controller starts with full ones. There are two kinds of clients:

* **Strict**: clients that send CreateTopics from version 6 on, DeleteTopics from version 5 on, or
  CreatePartitions from version 3 on. While such a client is in debt, each change is refused with
  THROTTLING_QUOTA_EXCEEDED. The answer says how long the client must wait before it retries.
* **Permissive**: clients that send older versions. The change is made, and the answer says how long the
  client should wait.

Requests about delegation tokens are strict in all versions. Each of them counts as one change, and is refused
while the client is in debt. (Kafka does not count them.)

Only changes that are possible are charged. So the attempt to create an existing topic costs nothing. A request for too
many partitions is refused, and also costs nothing. Otherwise one such request could put all clients that share the
quota into debt for years.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX
from odradek.metadata_quorum.controller.partitions.create_partitions import new_partitions_asked
from odradek.metadata_quorum.controller.topics import partitions_asked
from odradek.metadata_quorum.envelope import Sender
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.metadata_quorum.quotas.quota_levels import CONTROLLER_MUTATION_RATE, Holding, holding_quota
from odradek.metadata_quorum.quotas.token_bucket import TokenBucket, wait_ms
from odradek.metadata_quorum.topic_names import invalid_topic_name_reason
from odradek.security.doors.door import Admitted
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_partitions import CreatePartitionsRequest
from odradek.wire.messages.create_topics import CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest
from odradek.wire.schema.anatomy import anatomy_of
from odradek.wire.schema.versions import (
    CREATE_PARTITIONS_STRICT_QUOTA,
    CREATE_TOPICS_STRICT_QUOTA,
    DELETE_TOPICS_STRICT_QUOTA,
)
from odradek.wire.structure import Message

__all__ = ["MutationQuotas"]

BUCKETS_MAX = 10_000
"""The most clients that have buckets of their own. Beyond this number, all clients with the same value of a
quota share one bucket. When the limit is reached, full buckets are dropped, because a new bucket begins full,
too.
"""
SWEEP_SECONDS_MIN = 1.0
"""The shortest time between two searches for full buckets, in seconds."""
_STRICT_SINCE: Mapping[type[Message], int] = {
    CreateTopicsRequest: CREATE_TOPICS_STRICT_QUOTA,
    DeleteTopicsRequest: DELETE_TOPICS_STRICT_QUOTA,
    CreatePartitionsRequest: CREATE_PARTITIONS_STRICT_QUOTA,
}
_EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class MutationQuotas:
    """The token buckets of one controller's clients."""

    def __init__(self, controller: ControllerSettings) -> None:
        self._burst_seconds = float(controller.quota_windows * controller.quota_window_seconds)
        self._controller = controller
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._make_room_at = 0.0
        self._refused = 0

    def admit(
        self, image: MetadataImage, sender: Sender, request: Message, version: int, now: float
    ) -> Admitted | None:
        """Charge a request to the sender's bucket. Returns the part of the request that the quota allows;
        None if no quota applies.

        `now` is the monotonic time in seconds.
        """
        kind = type(request)
        if kind not in _STRICT_SINCE or not image.access.client_quotas:
            return None
        user = sender.principal.partition(":")[2]
        holding = holding_quota(image.access.client_quotas, CONTROLLER_MUTATION_RATE, user, sender.client_id)
        if holding is None:
            return None
        bucket = self._bucket(holding, now)
        if version < _STRICT_SINCE[kind]:
            seconds = bucket.charge(sum(self._costs(image, request)), now)
            return Admitted(request, lambda response: _with_wait(response, seconds))
        kept = []
        for cost in self._costs(image, request):
            kept.append(not cost or bucket.wait_seconds(now) <= 0)
            if cost and kept[-1]:
                bucket.charge(cost, now)
        if all(kept):
            return Admitted(request, lambda response: response)
        self._refused += kept.count(False)
        return _without(image, request, kept, bucket.wait_seconds(now))

    def charge_one(self, image: MetadataImage, sender: Sender, now: float) -> float:
        """Charge one change of a delegation token.

        If the sender is in debt, charge nothing, and return the seconds to wait. Otherwise return 0.
        """
        user = sender.principal.partition(":")[2]
        holding = holding_quota(image.access.client_quotas, CONTROLLER_MUTATION_RATE, user, sender.client_id)
        if holding is None:
            return 0.0
        bucket = self._bucket(holding, now)
        seconds = bucket.wait_seconds(now)
        if seconds > 0:
            self._refused += 1
        else:
            bucket.charge(1, now)
        return seconds

    def _bucket(self, holding: Holding, now: float) -> TokenBucket:
        burst = holding.value * self._burst_seconds
        sharers = holding.sharers
        bucket = self._buckets.get(sharers)
        if bucket is None and len(self._buckets) >= BUCKETS_MAX:
            self._make_room(now)
        if bucket is None and len(self._buckets) >= BUCKETS_MAX:
            sharers = ("", f"<others> of {holding.value:g}")
            bucket = self._buckets.get(sharers)
        if bucket is None:
            bucket = self._buckets[sharers] = TokenBucket(holding.value, burst, now)
        elif bucket.rate != holding.value:
            bucket.set_rate(holding.value, burst, now)
        return bucket

    def _make_room(self, now: float) -> None:
        if now >= self._make_room_at:
            self._make_room_at = now + SWEEP_SECONDS_MIN
            for sharers in [each for each, bucket in self._buckets.items() if bucket.has(bucket.burst, now)]:
                del self._buckets[sharers]

    def _costs(self, image: MetadataImage, request: Any) -> Sequence[int]:
        """Return for each topic in the request the number of partitions that would be created or deleted; 0
        if the change is impossible.
        """
        return _COSTS[type(request)](image, request, self._controller)

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: the number of buckets, and of changes refused since the start."""
        return {"buckets": len(self._buckets), "refused": self._refused}


def _creation_costs(
    image: MetadataImage, request: CreateTopicsRequest, settings: ControllerSettings
) -> list[int]:
    counts = Counter(topic.name for topic in request.topics)
    asked = [0 if counts[topic.name] > 1 else partitions_asked(topic, settings) for topic in request.topics]
    if sum(asked) > RECORDS_PER_REQUEST_MAX:
        return [0] * len(asked)  # Such a request is refused as a whole, so it costs nothing.
    return [
        0 if topic.name in image.topics or invalid_topic_name_reason(topic.name) is not None else cost
        for topic, cost in zip(request.topics, asked, strict=True)
    ]


def _growth_costs(
    image: MetadataImage, request: CreatePartitionsRequest, settings: ControllerSettings
) -> list[int]:
    counts = Counter(topic.name for topic in request.topics)
    asked = [0 if counts[topic.name] > 1 else new_partitions_asked(image, topic) for topic in request.topics]
    return [0 if cost > RECORDS_PER_REQUEST_MAX else cost for cost in asked]


def _deletion_costs(
    image: MetadataImage, request: DeleteTopicsRequest, settings: ControllerSettings
) -> list[int]:
    found: list[TopicImage | None] = [image.topics.get(name) for name in request.topic_names]
    found += [
        image.topics_by_id.get(each.topic_id) if each.name is None else image.topics.get(each.name)
        for each in request.topics
    ]
    counts = Counter(topic.topic_id for topic in found if topic is not None)
    return [0 if topic is None or counts[topic.topic_id] > 1 else len(topic.partitions) for topic in found]


_COSTS: Mapping[type[Message], Callable[[MetadataImage, Any, ControllerSettings], Sequence[int]]] = {
    CreateTopicsRequest: _creation_costs,
    CreatePartitionsRequest: _growth_costs,
    DeleteTopicsRequest: _deletion_costs,
}


def _without(image: MetadataImage, request: Message, kept: Sequence[bool], seconds: float) -> Admitted:
    """Return a request with only the kept topics, and a function that adds errors for the refused topics to
    the response. `seconds` is the time to wait.
    """
    anatomy = anatomy_of(request)
    heads = zip(anatomy.heads(request), kept, strict=True)
    refused = [anatomy.refused(head, _EXCEEDED) for head, is_kept in heads if not is_kept]
    for each in refused:
        if isinstance(each, DeletableTopicResult) and each.name is not None:
            each.topic_id = image.topics[each.name].topic_id
    add = anatomy.adding(kept, refused)
    return Admitted(anatomy.only(request, kept), lambda response: _with_wait(add(response), seconds))


def _with_wait(response: Any, seconds: float) -> Any:
    if seconds <= 0:
        return response
    return attrs.evolve(response, throttle_time_ms=wait_ms(seconds))
