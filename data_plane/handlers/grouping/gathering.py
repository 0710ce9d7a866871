"""One answer made of several coordinators' answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.handlers.desk import Desk
from odradek.serving.contract import Delayed, Result
from odradek.serving.slices import Work, complete_in_slices

DECISION_UNITS = 5
"""The cost of a coordinator's decision about one group, in descriptions of a partition."""


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

    __slots__ = ("_combine", "_desk", "_missing", "_parts")

    def __init__(self, desk: Desk, combine: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self._desk = desk
        self._combine = combine
        self._missing = 1
        """Parts without an answer; the one more is the request that asks for them."""
        self._parts: list[Any] = []

    def take(self, index: int, response: Any) -> None:
        self._parts[index] = response
        self.close()

    def close(self) -> None:
        """One answer is missing less; called once by who asks, when all parts are asked for."""
        self._missing -= 1
        if not self._missing:
            combined = self._combine(self._parts)
            if isinstance(combined, Generator):
                complete_in_slices(self._desk.long_work, self._desk.tasks, combined, self.complete)
            else:
                self.complete(combined)

    def part(self) -> _Part:
        """The part of the response that the next answer goes to."""
        self._parts.append(None)
        self._missing += 1
        return _Part(self, len(self._parts) - 1)


def asking(
    desk: Desk,
    groups: GroupCoordinator,
    version: int,
    asked: Iterable[tuple[str, Any]],
    combine: Callable[[list[Any]], Any],
    units: int = DECISION_UNITS,
) -> Work[Result]:
    """Ask the coordinator of each (group id, request), of so many units each, and combine their answers: see `Gather`."""
    wall_ms = desk.clock.wall_ms()
    gather = Gather(desk, combine)
    for group_id, request in asked:
        groups.submit(group_id, Ask(request, version, gather.part(), wall_ms))
        yield units
    gather.close()
    return gather if gather.response is None else gather.response


__all__ = ["DECISION_UNITS", "Gather", "asking"]
