"""One answer made of several coordinators' answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from data_plane.broker import Broker
from data_plane.groups.turn import Ask
from data_plane.handlers.contract import Context, Delayed, Result
from data_plane.handlers.slices import Work, complete_in_slices, in_slices

DECISION_UNITS = 5
"""What a coordinator's decision about one group counts like, in partitions described."""


class _Part:
    __slots__ = ("gather", "index")

    def __init__(self, gather: Gather, index: int) -> None:
        self.gather = gather
        self.index = index

    def complete(self, response: Any) -> None:
        self.gather.take(self.index, response)


class Gather(Delayed):
    """Complete with `combine(answers)` when all parts have answered, in whatever order.

    `combine` gives the response, or describes in slices how it is made.
    """

    __slots__ = ("_broker", "_combine", "_missing", "_parts")

    def __init__(self, broker: Broker, count: int, combine: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self._broker = broker
        self._combine = combine
        self._missing = count
        self._parts: list[Any] = [None] * count

    def take(self, index: int, response: Any) -> None:
        self._parts[index] = response
        self._missing -= 1
        if not self._missing:
            combined = self._combine(self._parts)
            if isinstance(combined, Generator):
                complete_in_slices(self._broker.long_work, self._broker.tasks, combined, self.complete)
            else:
                self.complete(combined)

    def part(self, index: int) -> _Part:
        return _Part(self, index)


def ask_groups(
    broker: Broker,
    context: Context,
    asked: Sequence[tuple[str, Any]],
    combine: Callable[[list[Any]], Any],
) -> Result:
    """Ask the coordinator of each (group id, request) and combine their answers, in order: see `Gather`."""
    if not asked:
        combined = combine([])
        return in_slices(broker.long_work, combined) if isinstance(combined, Generator) else combined
    version, wall_ms = context.api_version, broker.clock.wall_ms()
    gather = Gather(broker, len(asked), combine)

    def submit() -> Work[Gather]:
        for index, (group_id, request) in enumerate(asked):
            broker.groups.submit(group_id, Ask(request, version, gather.part(index), wall_ms))
            yield DECISION_UNITS
        return gather

    result = in_slices(broker.long_work, submit())
    return result if result is not gather or gather.response is None else gather.response
