"""Checkers of a recorded history. They find the anomalies of Jepsen's Kafka workload, and three kinds of anomalies of
our own.

Theory of operation. Every offset that a client saw, in an acknowledgement or a poll, is evidence for the order of its
key. `VersionOrder` numbers the offsets of a key that hold a record. An offset without a record is legal: it belongs to
a control record, or to an attempt that failed. So checks for skipped records compare these *indices* instead of
offsets. Each checker is a function from the history and its orders to anomalies; `check` runs all of them. An operation
with outcome `info` proves only what it has read.

These checkers are Jepsen's. Their anomalies have the same names as in Jepsen's results: `inconsistent-offsets`,
`duplicate`, `lost-write`, `unseen`, `G1a`, `poll-skip`, `nonmonotonic-poll`, `int-poll-skip`, `int-nonmonotonic-poll`,
`nonmonotonic-send`. The two checks that compare polls of different calls apply only to consumers that assign partitions
to themselves. In a group, a partition may move to another member and back.

These checkers are ours:
* `vanished`: a value that was acknowledged or read, and which the final complete reading of its key does not show.
  Jepsen's `lost-write` and `unseen` only check whether any consumer ever read it. So they miss a record that was
  readable first and truncated later.
* `wrong-bytes`: a record that no producer of this run wrote.
* `lost-commit`: a group lost an acknowledged commit. A member that got the partition later began at a lower offset.

These checkers find anomalies of operations with several parts (`Send.txn`): `precommitted-read`, `int-nonmonotonic-send`; circular
information flow over reads (`G1c`, `G1c-process`, `G1c-realtime`, see `cycles.py`).

`ALLOWED` finds anomalies that Jepsen reports and we accept, because Kafka's sends are not isolated from each other.
These are `int-send-skip`, `G0`, and `G1c` over the order of writes, which is named `G1c-ww`. `observe` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import attrs

from jepsen_tests.cycles import ORDERS, Order, Step, cycles, operations
from jepsen_tests.history import CORRUPT, Assign, Commit, History, Operation, Own, Poll, Restart, Send
from jepsen_tests.version_order import VersionOrder

__all__ = ["ALLOWED", "CHECKERS", "Anomaly", "check", "observe"]


@attrs.frozen
class Anomaly:
    """An anomaly in a history: its name, the key, and a sentence with the evidence."""

    name: str
    key: str
    detail: str


Orders = dict[str, VersionOrder]


def check(history: History) -> list[Anomaly]:
    """Return all anomalies of all checkers, in the order of `CHECKERS`."""
    orders = version_orders(history)
    return [anomaly for checker in CHECKERS for anomaly in checker(history, orders)]


def observe(history: History) -> list[Anomaly]:
    """Return the anomalies of the checkers in `ALLOWED`: they are legal in Kafka, but of interest."""
    orders = version_orders(history)
    return [found for checker in ALLOWED for found in checker(history, orders)]


def version_orders(history: History) -> Orders:
    """Build the order of every key, from acknowledged sends and all polls."""
    orders: Orders = {}
    for send in history.sends():
        if send.outcome == "ok" and send.offset is not None:
            orders.setdefault(send.key, VersionOrder()).see(send.offset, send.value)
    for poll in history.polls():
        for key, records in poll.records.items():
            order = orders.setdefault(key, VersionOrder())
            for offset, value in records:
                order.see(offset, value)
    for order in orders.values():
        order.close()
    return orders


def inconsistent_offsets(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find offsets of a key at which two values were seen: the log was truncated below offsets that clients had read."""
    for key, order in orders.items():
        for offset, values in sorted(order.values_at.items()):
            if len(values) > 1:
                yield Anomaly("inconsistent-offsets", key, f"offset {offset} held the values {list(values)}")


def duplicate(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find values that are stored at two offsets. With an idempotent producer, retries must not store a record twice.

    Producers that restarted their sequence, or are not idempotent, are exempt.
    """
    for key, value, offsets, excused in _stored_twice(history, orders):
        if not excused:
            yield Anomaly("duplicate", key, f"value {value} is at the offsets {offsets}")


def excused_duplicates(history: History) -> int:
    """Count the values stored twice because their producer restarted its sequence and sent them again."""
    return sum(excused for *_, excused in _stored_twice(history, version_orders(history)))


def _stored_twice(history: History, orders: Orders) -> Iterator[tuple[str, int, list[int], bool]]:
    """Yield (key, value, offsets, excused) for each value that is stored at several offsets. `excused` is True if a
    restart of the producer explains this.
    """
    restarts: dict[str, list[float]] = {}
    for operation in history.operations:
        if isinstance(operation, Restart):
            restarts.setdefault(operation.process, []).append(operation.invoked)
    sends = {(send.key, send.value): send for send in history.sends()}
    for key, order in orders.items():
        for value, offsets in order.offsets_of.items():
            if len(offsets) < 2 or value == CORRUPT:
                continue
            send = sends.get((key, value))
            excused = send is not None and (
                send.may_repeat or _under_way(send, restarts.get(send.process, ()))
            )
            yield key, value, sorted(offsets), excused


def _under_way(send: Send, moments: Sequence[float]) -> bool:
    """True if one of the times in `moments` lies between the start of a send and its answer."""
    return any(
        send.invoked <= moment and (send.completed is None or moment <= send.completed) for moment in moments
    )


def lost_write(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find acknowledged writes that no consumer ever read, although a consumer has read beyond them."""
    yield from _never_read(history, orders, "lost-write", beyond=True)


def unseen(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find acknowledged writes that stayed unread, if all later records of the same key stayed unread, too.
    Such writes are lost or stuck.
    """
    yield from _never_read(history, orders, "unseen", beyond=False)


def _never_read(history: History, orders: Orders, name: str, *, beyond: bool) -> Iterator[Anomaly]:
    read: dict[str, set[int]] = {}
    furthest: dict[str, int] = {}
    for poll in history.polls():
        if poll.outcome != "ok":
            continue
        for key, records in poll.records.items():
            read.setdefault(key, set()).update(value for _, value in records)
            top = max((offset for offset, _ in records), default=-1)
            furthest[key] = max(furthest.get(key, -1), top)
    for send in history.sends():
        if send.outcome != "ok" or send.value in read.get(send.key, ()):
            continue
        offset = -1 if send.offset is None else send.offset
        if (furthest.get(send.key, -1) > offset) is beyond:
            yield Anomaly(
                name,
                send.key,
                f"value {send.value} was acknowledged at offset {offset} ({send.process}, {_when(send)}) and never read;"
                f" readers came to offset {furthest.get(send.key, -1)}",
            )


def vanished(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find values that were acknowledged or read, and are missing in the final complete reading of their key."""
    final: dict[str, set[int]] = {}
    for poll in history.polls():
        if poll.final and poll.outcome == "ok":
            for key, records in poll.records.items():
                final.setdefault(key, set()).update(value for _, value in records)
    told: set[tuple[str, int]] = set()
    for poll in history.polls():
        for key, records in poll.records.items():
            if key not in final or poll.final:
                continue
            for offset, value in records:
                if value not in final[key] and (key, value) not in told:
                    told.add((key, value))
                    yield Anomaly(
                        "vanished",
                        key,
                        f"value {value} was read at offset {offset} by {poll.process} at {poll.invoked:.3f} s"
                        " and is gone in the end",
                    )


def aborted_read(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find values that a consumer read although their send had certainly failed (G1a)."""
    failed = {(send.key, send.value): send for send in history.sends() if send.outcome == "fail"}
    for poll in history.polls():
        if poll.outcome != "ok":
            continue
        for key, records in poll.records.items():
            for offset, value in records:
                if (key, value) in failed:
                    error = failed[key, value].error
                    yield Anomaly(
                        "G1a", key, f"value {value}, failed by {error!r}, was read at offset {offset}"
                    )


def wrong_bytes(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find records whose bytes no producer of this run has written."""
    for poll in history.polls():
        for key, records in poll.records.items():
            for offset, value in records:
                if value == CORRUPT:
                    yield Anomaly("wrong-bytes", key, f"{poll.process} read foreign bytes at offset {offset}")


def polls_in_one_call(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find int-poll-skip and int-nonmonotonic-poll: records that one call returned out of order or with a gap."""
    for poll in history.polls():
        for key, records in poll.records.items():
            if key in poll.rebalanced:
                continue
            for (before, _), (after, _) in pairwise(records):
                yield from _step(poll, key, before, after, orders[key], "int-")


def polls_between_calls(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find poll-skip and nonmonotonic-poll: a consumer with assigned partitions did not continue where its last call
    had ended.
    """
    positions: dict[tuple[str, str], int | None] = {}
    for operation in history.operations:
        if isinstance(operation, Assign):
            for place in [place for place in positions if place[0] == operation.process]:
                del positions[place]
            positions.update({(operation.process, key): None for key in operation.keys})
        elif isinstance(operation, Poll):
            for key, records in operation.records.items():
                place = (operation.process, key)
                if place not in positions or not records:
                    continue
                before = positions[place]
                if before is not None:
                    yield from _step(operation, key, before, records[0][0], orders[key], "")
                positions[place] = records[-1][0]


def _step(
    poll: Poll, key: str, before: int, after: int, order: VersionOrder, prefix: str
) -> Iterator[Anomaly]:
    """Yield the anomaly, if any, of a consumer whose position went from offset `before` to offset `after`."""
    distance = order.index(after) - order.index(before)
    if distance == 1:
        return
    name = "nonmonotonic-poll" if distance <= 0 else "poll-skip"
    missed = f", over {distance - 1} records" if distance > 1 else ""
    yield Anomaly(
        prefix + name,
        key,
        f"{poll.process} went from offset {before} to {after}{missed} at {poll.invoked:.3f} s",
    )


def nonmonotonic_send(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find records of an idempotent producer that are stored out of order.

    Within one operation of several sends, the anomaly is called `int-nonmonotonic-send`.
    """
    last: dict[tuple[str, str], Send] = {}
    for send in history.sends():
        if send.outcome != "ok" or send.offset is None or send.may_repeat:
            continue
        before = last.get((send.process, send.key))
        if before is not None and before.offset is not None and send.offset <= before.offset:
            yield Anomaly(
                "int-nonmonotonic-send" if _same_operation(before, send) else "nonmonotonic-send",
                send.key,
                f"{send.process} sent {before.value}, acknowledged at offset {before.offset}, and then {send.value},"
                f" acknowledged at {send.offset}",
            )
        last[send.process, send.key] = send


def precommitted_read(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find operations that read a value which they have sent themselves. This is an anomaly, because only committed
    values may be read.
    """
    for step in operations(history):
        own = {(part.key, part.value) for part in step.parts if isinstance(part, Send)}
        for part in step.parts:
            if own and isinstance(part, Poll):
                for key, records in part.records.items():
                    for offset, value in records:
                        if (key, value) in own:
                            yield Anomaly(
                                "precommitted-read",
                                key,
                                f"{step} read its own value {value} at offset {offset}",
                            )


def circular_information_flow(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find G1c: operations that depend on each other in a circle, because of the values that they have read."""
    yield from _circles("G1c", lambda order: cycles(history, orders, order, with_ww=False))


def order_cycles(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find operations that follow each other in a circle by the order of writes: G0 with its variants, and G1c if it
    includes this order. Such circles are legal in Kafka.
    """
    yield from _circles("G0", lambda order: cycles(history, orders, order, with_ww=True, with_wr=False))
    yield from _circles(
        "G1c-ww",
        lambda order: (
            knot
            for knot in cycles(history, orders, order, with_ww=True)
            if any(isinstance(part, Poll) for step in knot for part in step.parts)
        ),
    )


def _circles(name: str, find: Callable[[Order], Iterator[list[Step]]]) -> Iterator[Anomaly]:
    """Yield the circles in the first order of `ORDERS` in which there is any. Later orders have all edges of this order
    and more, so the same circles would be found again.
    """
    for order in ORDERS:
        knots = list(find(order))
        yield from (_circle(name + order, knot) for knot in knots)
        if knots:
            return


def _circle(name: str, knot: Sequence[Step]) -> Anomaly:
    return Anomaly(
        name, "", f"{len(knot)} operations depend on each other in a circle: " + "; ".join(map(str, knot[:4]))
    )


def sends_apart(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find int-send-skip: other operations' sends to a key lie between two sends of one operation. This is legal in
    Kafka.
    """
    last: dict[tuple[str, str], Send] = {}
    for send in history.sends():
        if send.outcome != "ok" or send.offset is None:
            continue
        before = last.get((send.process, send.key))
        if before is not None and before.offset is not None and _same_operation(before, send):
            order = orders[send.key]
            between = order.index(send.offset) - order.index(before.offset) - 1
            if between > 0:
                yield Anomaly(
                    "int-send-skip",
                    send.key,
                    f"{between} records lie between {before.value} and {send.value}",
                )
        last[send.process, send.key] = send


def _same_operation(one: Send, other: Send) -> bool:
    return one.txn is not None and (one.process, one.txn) == (other.process, other.txn)


def lost_commit(history: History, orders: Orders) -> Iterator[Anomaly]:
    """Find members that begin below an offset which their group had acknowledged before the partition was assigned to
    them.
    """
    commits: dict[tuple[str, str], list[Commit]] = {}
    for operation in history.operations:
        if isinstance(operation, Commit) and operation.outcome != "fail":
            for key in operation.offsets:
                commits.setdefault((operation.group, key), []).append(operation)
    waiting: dict[tuple[str, str], Own] = {}
    for operation in sorted(history.operations, key=_known_at):
        if isinstance(operation, Own):
            waiting.update({(operation.process, key): operation for key in operation.keys})
        elif isinstance(operation, Poll):
            for key, records in operation.records.items():
                own = waiting.pop((operation.process, key), None)
                if own is None or not records:
                    continue
                least = _least_committed(commits.get((own.group, key), ()), key, own.invoked)
                if least is not None and records[0][0] < least:
                    yield Anomaly(
                        "lost-commit",
                        key,
                        f"{own.group} had committed {least} when it handed the key to {own.process} at"
                        f" {own.invoked:.3f} s, which began at {records[0][0]}",
                    )


def _known_at(operation: Operation) -> float:
    """Return the time at which a process knows the result of an operation. For a poll it is the end of the call, because
    a rebalance may happen during the call.
    """
    if isinstance(operation, Poll) and operation.completed is not None:
        return operation.completed
    return operation.invoked


def _least_committed(commits: Sequence[Commit], key: str, at: float) -> int | None:
    """Return the lowest offset that may be the group's committed offset at time `at`; None if there may be none.

    Commits that overlap may have been executed in any order. A
    commit of unknown outcome may take effect at any time, until its generation is over.
    """
    certain = [
        each
        for each in commits
        if each.outcome == "ok" and each.completed is not None and each.completed < at
    ]
    if not certain:
        return None
    latest_start = max(each.invoked for each in certain)
    possible = [
        each.offsets[key]
        for each in commits
        if each.effective_until is None or each.effective_until >= latest_start
    ]
    return min(possible)


def _when(send: Send) -> str:
    return f"sent at {send.invoked:.3f} s" + (
        f", acknowledged at {send.completed:.3f} s" if send.completed is not None else ""
    )


CHECKERS: tuple[Callable[[History, Orders], Iterator[Anomaly]], ...] = (
    lost_write,
    unseen,
    vanished,
    inconsistent_offsets,
    duplicate,
    wrong_bytes,
    aborted_read,
    nonmonotonic_send,
    polls_in_one_call,
    polls_between_calls,
    precommitted_read,
    circular_information_flow,
    lost_commit,
)
ALLOWED: tuple[Callable[[History, Orders], Iterator[Anomaly]], ...] = (sends_apart, order_cycles)
"""Checkers whose anomalies are legal; they are only printed."""
