"""One answer made of several coordinators' answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from data_plane.broker import Broker
from data_plane.groups.turn import Ask
from data_plane.handlers.contract import Context, Delayed, Result


class _Part:
    __slots__ = ("gather", "index")

    def __init__(self, gather: Gather, index: int) -> None:
        self.gather = gather
        self.index = index

    def complete(self, response: Any) -> None:
        self.gather.take(self.index, response)


class Gather(Delayed):
    """Complete with `combine(answers)` when all parts have answered, in whatever order."""

    __slots__ = ("_combine", "_missing", "_parts")

    def __init__(self, count: int, combine: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self._combine = combine
        self._missing = count
        self._parts: list[Any] = [None] * count

    def take(self, index: int, response: Any) -> None:
        self._parts[index] = response
        self._missing -= 1
        if not self._missing:
            self.complete(self._combine(self._parts))

    def part(self, index: int) -> _Part:
        return _Part(self, index)


def ask_groups(
    broker: Broker,
    context: Context,
    asked: Sequence[tuple[str, Any]],
    combine: Callable[[list[Any]], Any],
) -> Result:
    """Ask the coordinator of each (group id, request) and combine their answers, in order."""
    if not asked:
        return combine([])
    gather = Gather(len(asked), combine)
    wall_ms = broker.clock.wall_ms()
    for index, (group_id, request) in enumerate(asked):
        broker.groups.submit(group_id, Ask(request, context.api_version, gather.part(index), wall_ms))
    return gather if gather.response is None else gather.response
