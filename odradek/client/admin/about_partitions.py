"""Builds requests that list partitions, and reads their answers. PURE.

The table `odradek.wire.schema.anatomy_rows` says, for each API, where its messages hold the partitions. The
table describes version 0 of each message, in which topics have names, not ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from odradek.client.core.scatter import item_error
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.wire.schema.anatomy import Anatomy
    from odradek.wire.structure import Message

__all__ = ["asking", "outcomes_as", "results_in"]

M = TypeVar("M", bound="Message")
V = TypeVar("V")


def asking(
    request: M, keys: Iterable[tuple[str, int]], thing: Callable[[TopicPartition], Any] | None = None
) -> M:
    """Add an entry for each of these partitions to a request, and return the request. The function `thing`
    makes the entry of a partition. Without `thing`, the entry is the partition's number.
    """
    names = (TopicPartition(*key) for key in keys)
    anatomy = _anatomy(request)
    asked: M = anatomy.asking(request, names) if thing is None else anatomy.asking(request, names, thing)
    return asked


def results_in(response: Message) -> Iterator[tuple[TopicPartition, KafkaError | None, Any]]:
    """Yield the name, the error and the result of each partition in an answer. The error is None on success."""
    for names, result in _anatomy(response).named_results(response):
        key = TopicPartition(*names[-2:])
        yield key, item_error(result.error_code, getattr(result, "error_message", None), str(key)), result


def outcomes_as(
    value: Callable[[TopicPartition, Any], V],
) -> Callable[[Any, object], Iterable[tuple[TopicPartition, V | KafkaError]]]:
    """Return a function that reads an answer for `scatter`. The function yields each partition with the
    partition's error, or with `value(partition, result)` if there is no error.
    """

    def take(response: Message, _: object) -> Iterator[tuple[TopicPartition, V | KafkaError]]:
        for key, error, result in results_in(response):
            yield key, value(key, result) if error is None else error

    return take


def _anatomy(message: Message) -> Anatomy:
    # Loaded at first use, because most commands send no requests about partitions.
    from odradek.wire.schema.anatomy import anatomy_of

    return anatomy_of(message, 0)
