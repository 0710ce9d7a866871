"""Cycles among operations: circular information flow (G1c) and circular order of writes (G0). PURE.

Theory of operation. An operation (all sends and polls of one `txn`, or a single one) is a vertex. The edges are:

* `wr`: the sender of a value -> every operation that read it.
* `ww`: the sender of a value -> the sender of the next value in the order of the key.
* process: an operation -> the next one of the same process.
* real time: an operation that had ended -> an operation that began later. Edges that follow from other edges are left
  out.

A strongly connected component with more than one vertex contains a cycle. A cycle without a `ww` edge (G1c,
G1c-process, G1c-realtime) is always wrong. It means that a poll has read a value that depends on the poll, or that was
sent only afterwards. A cycle with `ww` edges may be legal: G0 and its variants, and G1c over `ww` edges. They are
frequent in Kafka, because it does not isolate operations with several sends. `order_cycles` reports them; `check` does
not count them as anomalies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import attrs

from jepsen_tests.history import CORRUPT, History, Poll, Send
from jepsen_tests.version_order import VersionOrder

Order = Literal["", "-process", "-realtime"]
ORDERS: tuple[Order, ...] = ("", "-process", "-realtime")

__all__ = ["ORDERS", "Order", "cycles", "operations"]


@attrs.define
class Step:
    """One operation as a vertex of the graph: its sends and polls in order."""

    process: str
    parts: list[Send | Poll] = attrs.field(factory=list)

    @property
    def invoked(self) -> float:
        return self.parts[0].invoked

    @property
    def completed(self) -> float | None:
        """The time at which the last part of the operation ended; None if it is uncertain when some part ended."""
        ends = [part.completed if part.outcome == "ok" else None for part in self.parts]
        return None if None in ends else max(end for end in ends if end is not None)

    def __str__(self) -> str:
        parts = ", ".join(
            f"send {part.value} to {part.key}" if isinstance(part, Send) else "poll"
            for part in self.parts[:3]
        )
        return f"{self.process} at {self.invoked:.3f} s ({parts})"


def operations(history: History) -> list[Step]:
    """Return the operations of a history in the order of their start. Operations that have certainly failed are left
    out.
    """
    found: list[Step] = []
    open_steps: dict[tuple[str, int], Step] = {}
    for part in history.operations:
        if not isinstance(part, Send | Poll) or part.outcome == "fail":
            continue
        if part.txn is None:
            found.append(Step(part.process, [part]))
            continue
        step = open_steps.get((part.process, part.txn))
        if step is None:
            step = open_steps[part.process, part.txn] = Step(part.process)
            found.append(step)
        step.parts.append(part)
    return found


def cycles(
    history: History, orders: Mapping[str, VersionOrder], order: Order, *, with_ww: bool, with_wr: bool = True
) -> Iterator[list[Step]]:
    """Yield each set of operations that depend on each other in a circle. `with_ww` and `with_wr` choose kinds of
    edges. `order` adds the edges of processes or of real time.
    """
    steps = operations(history)
    edges: list[list[int]] = [[] for _ in steps]
    writers = {
        (part.key, part.value): index
        for index, step in enumerate(steps)
        for part in step.parts
        if isinstance(part, Send)
    }
    if with_wr:
        for index, step in enumerate(steps):
            for part in step.parts:
                if isinstance(part, Poll) and part.outcome == "ok":
                    for key, records in part.records.items():
                        for _, value in records:
                            _add(edges, writers.get((key, value)), index)
    if with_ww:
        for key, versions in orders.items():
            before: int | None = None
            for offset in sorted(versions.values_at):
                values = [value for value in versions.values_at[offset] if value != CORRUPT]
                writer = writers.get((key, values[0])) if values else None
                _add(edges, before, writer)
                before = writer
    if order == "-process":
        last: dict[str, int] = {}
        for index, step in enumerate(steps):
            _add(edges, last.get(step.process), index)
            last[step.process] = index
    elif order == "-realtime":
        _add_real_time(steps, edges)
    for knot in _knots(edges):
        yield [steps[index] for index in sorted(knot)]


def _add(edges: list[list[int]], source: int | None, target: int | None) -> None:
    if source is not None and target is not None and source != target:
        edges[source].append(target)


def _add_real_time(steps: Sequence[Step], edges: list[list[int]]) -> None:
    """Add an edge from each operation to the operations that began after its end, unless a third operation lies between
    them.
    """
    moments: list[tuple[float, int, int]] = []
    for index, step in enumerate(steps):
        moments.append((step.invoked, 1, index))
        end = step.completed
        if end is not None and end > step.invoked:
            moments.append((end, 0, index))
    frontier: dict[int, None] = {}
    preceding: dict[int, tuple[int, ...]] = {}
    for _, is_begin, index in sorted(moments):
        if is_begin:
            preceding[index] = tuple(frontier)
            for source in frontier:
                _add(edges, source, index)
        else:
            for source in preceding.pop(index):
                frontier.pop(source, None)
            frontier[index] = None


def _knots(edges: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components with more than one vertex (Tarjan's algorithm, without recursion)."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: dict[int, None] = {}
    for root in range(len(edges)):
        if root in number or not edges[root]:
            continue
        work = [(root, 0)]
        while work:
            vertex, place = work.pop()
            if place == 0:
                number[vertex] = lowest[vertex] = len(number)
                stack.append(vertex)
                on_stack[vertex] = None
            else:
                lowest[vertex] = min(lowest[vertex], lowest[edges[vertex][place - 1]])
            for position in range(place, len(edges[vertex])):
                target = edges[vertex][position]
                if target not in number:
                    work += [(vertex, position + 1), (target, 0)]
                    break
                if target in on_stack:
                    lowest[vertex] = min(lowest[vertex], number[target])
            else:
                if lowest[vertex] == number[vertex]:
                    knot = _top_of(stack, vertex)
                    del stack[len(stack) - len(knot) :]
                    for each in knot:
                        del on_stack[each]
                    if len(knot) > 1:
                        yield knot


def _top_of(stack: Sequence[int], vertex: int) -> list[int]:
    """Return the part of the stack from `vertex` to the top."""
    place = len(stack) - 1
    while stack[place] != vertex:
        place -= 1
    return list(stack[place:])
