"""Fetches record batches of many partitions at once, with the transactions that were aborted there. PURE.

It is an operation of the client. No fetch session is used, since a reader looks at a place once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.admin.about_partitions import asking, outcomes_as
from odradek.client.core.operation import Operation
from odradek.client.core.scatter import item_error, scatter, to_leaders
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError
    from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData

__all__ = ["FetchedBatches", "fetch_batches"]

FETCH_BYTES_MAX = 8 << 20
PARTITION_BYTES_MAX = 1 << 20


@attrs.frozen(eq=False)
class FetchedBatches:
    """The batches of one partition from an offset on. The first one may begin below that offset."""

    data: memoryview
    high_watermark: int
    last_stable_offset: int
    aborted: Sequence[tuple[int, int]]
    """(first offset, producer id) of each transaction that was aborted in this range, sorted by offset.

    It is empty unless only stable records were asked for.
    """


def fetch_batches(
    core: ClientCore,
    offsets: Mapping[TopicPartition, int],
    *,
    only_stable: bool,
    wait_ms: int = 0,
    deadline: float,
) -> Operation[dict[TopicPartition, FetchedBatches | CallError]]:
    """Fetch batches of each partition from its offset on.

    With `only_stable`, batches end at the last stable offset, and `aborted` is known. Without, they end at the
    high watermark. The brokers wait up to `wait_ms` for the first byte. Raises `ClientError`.
    """
    from odradek.wire.messages.fetch import FetchPartition, FetchRequest

    def partition_of(key: TopicPartition) -> FetchPartition:
        return FetchPartition(
            partition=key.partition, fetch_offset=offsets[key], partition_max_bytes=PARTITION_BYTES_MAX
        )

    def message(keys: list[TopicPartition], _: int) -> FetchRequest:
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=FETCH_BYTES_MAX, isolation_level=int(only_stable)
        )
        return asking(request, keys, partition_of)

    take_each = outcomes_as(_fetched)

    def take(
        response: FetchResponse, keys: list[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, FetchedBatches | CallError]]:
        error = item_error(response.error_code, None, "fetch")
        return take_each(response, keys) if error is None else [(key, error) for key in keys]

    return (
        yield from scatter(
            core, offsets, to_leaders, message, take, deadline=deadline, versions=(0, FETCH_TOPIC_IDS - 1)
        )
    )


def _fetched(_: TopicPartition, result: PartitionData) -> FetchedBatches:
    return FetchedBatches(
        memoryview(result.records or b""),
        result.high_watermark,
        result.last_stable_offset,
        sorted((each.first_offset, each.producer_id) for each in result.aborted_transactions or ()),
    )
