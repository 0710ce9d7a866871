"""The history of all operations of clients in a run, and the check that the final records agree with it. PURE.

The history also keeps the operations in the form that the tests of real processes use. `check_anomalies` runs the
checkers of those tests, which look for Jepsen's anomalies (`jepsen_tests.checkers`).

`check` tests these guarantees of a single node:

1. An acknowledged record is in the final log, at its offset, byte for byte. After a power loss this holds only for
   topics that sync each batch (`flush.messages=1`). In other topics only a second replica could keep the record, and
   a cluster of one node has none.
2. A record that a consumer has read is in the final log, if no power loss came after the read.
3. The offsets of the final records have no gaps, and every record was sent by a client.
4. An idempotent producer's record occurs at most once, and its records are in the order in which it sent them. A
   record of any other producer occurs at most as often as it was sent.
5. Once a record was acknowledged or read at an offset, all records that any client sends later have higher offsets.
   There is one exception. A power loss may remove a record that was not acknowledged as synced, and the record may be
   written again after others.
6. A record whose send has certainly failed does not occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import attrs

from jepsen_tests import checkers
from jepsen_tests.history import CORRUPT, Assign, Commit, Own, Poll, Send
from jepsen_tests.history import History as Operations
from odradek.wire.topic_partition import TopicPartition


class SafetyViolation(AssertionError):
    """Raised if the product has broken a guarantee. The message is one line that describes the broken guarantee."""


@attrs.frozen
class Told:
    """A record that a client has received, or whose send was acknowledged to the client. `time` is the virtual time of
    that event in seconds.
    """

    partition: TopicPartition
    offset: int
    value: bytes
    time: float


@attrs.define
class History:
    """All operations of clients in a run: sends, answers and reads."""

    synced_topics: tuple[str, ...]
    sent: dict[TopicPartition, dict[bytes, int]] = attrs.Factory(dict)
    """For each partition, its values, numbered in the order in which producers sent them."""
    acknowledged: list[Told] = attrs.Factory(list)
    read: list[Told] = attrs.Factory(list)
    power_losses: list[float] = attrs.Factory(list)
    failed_sends: int = 0
    deleted_below: dict[TopicPartition, int] = attrs.Factory(dict)
    """For each partition, the offset below which a client has asked to delete records."""
    witnessed: dict[TopicPartition, dict[int, tuple[bytes, float, float]]] = attrs.Factory(dict)
    """For each partition and offset, the value that a client saw there, when the client saw it, and when the client
    sent its request. The time of the request is infinity if the record is synced.
    """
    copies_max: dict[tuple[TopicPartition, bytes], float] = attrs.Factory(dict)
    """The largest number of copies of each record that a producer without idempotence has sent."""

    operations: Operations = attrs.Factory(Operations)
    """The same operations in the form that Jepsen's checkers use. In this form each value is replaced by the number of
    its `Send`.
    """
    _sends: dict[tuple[TopicPartition, bytes], Send] = attrs.Factory(dict)

    def send(
        self,
        partition: TopicPartition,
        value: bytes,
        client: str = "",
        now: float = 0.0,
        *,
        operation: int | None = None,
        idempotent: bool = True,
    ) -> None:
        """Note that a client is about to send a record. Values are unique. If one call of the client sends several
        records, `operation` is the number of that call.

        Without `idempotent` the order of records may change, and the record may occur several times. The method
        `attempted` notes how often the record was sent.
        """
        values = self.sent.setdefault(partition, {})
        assert value not in values
        values[value] = len(values)
        if not idempotent:
            self.copies_max[partition, value] = 1
        send = Send(client, now, str(partition), len(self._sends), txn=operation, may_repeat=not idempotent)
        self._sends[partition, value] = send
        self.operations.operations.append(send)

    def acknowledge(self, told: Told, now: float) -> None:
        """Record that a send was acknowledged at the offset in the answer."""
        self.acknowledged.append(told)
        send = self._sends[told.partition, told.value]
        send.completed, send.outcome, send.offset = now, "ok", told.offset
        self.witness(told, now, synced=told.partition.topic in self.synced_topics)

    def attempted(self, partition: TopicPartition, value: bytes, times: float) -> None:
        """Note how many times a producer without idempotence has sent a record (infinity: unknown)."""
        self.copies_max[partition, value] = max(1, times)

    def refuse(self, partition: TopicPartition, value: bytes, error: str, now: float) -> None:
        """Note that a send has certainly failed, so that no client may ever see the record."""
        send = self._sends[partition, value]
        send.completed, send.outcome, send.error = now, "fail", error
        self.failed_sends += 1

    def witness(self, told: Told, now: float, *, synced: bool = False) -> None:
        """Note that a client has seen this record at its offset. As long as the record remains there, records that are
        sent later must have higher offsets.

        A record that is not `synced` counts only until the next power loss. It may be gone already if the client's
        request is older than the last power loss.
        """
        at = self.witnessed.setdefault(told.partition, {})
        before = at.get(told.offset)
        asked = inf if synced else told.time
        if before is None or before[0] != told.value or before[2] <= self.last_power_loss() < asked:
            at[told.offset] = told.value, now, asked

    def assign(self, client: str, partitions: Iterable[TopicPartition], now: float) -> None:
        """Record that a consumer assigns partitions to itself, and reads in order from now on."""
        self.operations.operations.append(Assign(client, now, [str(key) for key in partitions]))

    def see(
        self,
        client: str,
        records: Sequence[Told],
        now: float,
        *,
        rebalanced: Iterable[TopicPartition] = (),
        final: bool = False,
    ) -> None:
        """Note that one poll of a consumer has returned `records`. `final` is True for reads after the run."""
        if not final:
            self.read += records
            for told in records:
                self.witness(told, now)
        if not records:
            return
        poll = Poll(
            client, records[0].time, now, "ok", rebalanced=[str(key) for key in rebalanced], final=final
        )
        for told in records:
            send = self._sends.get((told.partition, told.value))
            value = CORRUPT if send is None else send.value
            poll.records.setdefault(str(told.partition), []).append((told.offset, value))
        self.operations.operations.append(poll)

    def own(self, client: str, group: str, partitions: Iterable[TopicPartition], now: float) -> None:
        """Record that a group assigns partitions to a member, which then fetches its positions from the group."""
        self.operations.operations.append(Own(client, now, group, [str(key) for key in partitions]))

    def commit(self, client: str, group: str, offsets: Mapping[TopicPartition, int], now: float) -> Commit:
        """Record a commit that a member is about to send. Returns it, so that the caller can set its outcome."""
        commit = Commit(client, now, group, {str(key): offset for key, offset in offsets.items()})
        self.operations.operations.append(commit)
        return commit

    def check_anomalies(self) -> None:
        """Check all operations against Jepsen's definitions. Raises `SafetyViolation`.

        Partitions with deleted records are left out, since readers may miss these.
        """
        for key in self.deleted_below:
            for each in self.operations.operations:
                if isinstance(each, Poll):
                    each.records.pop(str(key), None)
        gone = {str(key) for key in self.deleted_below}
        kept = [
            each for each in self.operations.operations if not (isinstance(each, Send) and each.key in gone)
        ]
        for anomaly in checkers.check(Operations(sorted(kept, key=lambda each: each.invoked))):
            raise SafetyViolation(f"{anomaly.name}: {anomaly.key}: {anomaly.detail}")

    def last_power_loss(self) -> float:
        """Return the virtual time of the last power loss in seconds; -1 if there was none."""
        return max(self.power_losses, default=-1.0)

    def check(
        self, partition: TopicPartition, start_offset: int, records: Iterable[tuple[int, bytes]]
    ) -> int:
        """Check a partition's final (offset, value) pairs against the guarantees, and return the number of records.

        Raises `SafetyViolation`.
        """
        if start_offset > self.deleted_below.get(partition, start_offset):
            raise SafetyViolation(
                f"{partition}: begins at {start_offset}, {self.deleted_below[partition]} was asked for"
            )
        gone = start_offset if partition in self.deleted_below else 0
        there: dict[int, bytes] = {}
        place: dict[bytes, int] = {}
        copies: dict[bytes, int] = {}
        expected = start_offset
        sent = self.sent.get(partition, {})
        for offset, value in records:
            if offset != expected:
                raise SafetyViolation(f"{partition}: offset {offset} follows {expected - 1}")
            if value not in sent:
                raise SafetyViolation(f"{partition}: nobody sent what is at {offset}: {value[:40]!r}")
            copies[value] = copies.get(value, 0) + 1
            if copies[value] > self.copies_max.get((partition, value), 1):
                raise SafetyViolation(f"{partition}: {value[:40]!r} is at {place[value]} and at {offset}")
            there[offset] = value
            place.setdefault(value, offset)
            expected += 1
        self._check_order(partition, there, sent)
        self._check_moments(partition, there)
        for told in self.acknowledged:
            if told.partition == partition and told.offset >= gone and self._is_promised(told):
                _check_told("acknowledged", told, there)
        for told in self.read:
            if told.partition == partition and told.offset >= gone and told.time > self.last_power_loss():
                _check_told("read", told, there)
        return len(there)

    def _is_promised(self, told: Told) -> bool:
        return told.partition.topic in self.synced_topics or told.time > self.last_power_loss()

    def _check_order(
        self, partition: TopicPartition, there: dict[int, bytes], sent: dict[bytes, int]
    ) -> None:
        last: dict[bytes, int] = {}
        for offset, value in there.items():
            producer = value.partition(b":")[0]
            if (partition, value) in self.copies_max:
                continue
            if sent[value] < last.get(producer, -1):
                raise SafetyViolation(
                    f"{partition}: {value[:40]!r} at {offset} comes after a later one of its producer"
                )
            last[producer] = sent[value]

    def _check_moments(self, partition: TopicPartition, there: dict[int, bytes]) -> None:
        """Check guarantee 5: no record comes before records that were already seen when it was sent."""
        witnessed = self.witnessed.get(partition, {})
        lost_at = self.last_power_loss()
        earliest, behind = inf, -1
        for offset in sorted(there, reverse=True):
            sent_at = self._sends[partition, there[offset]].invoked
            if sent_at > earliest:
                raise SafetyViolation(
                    f"{partition}: {there[offset][:40]!r} was sent at {sent_at:.6f} s and is at {offset}, before"
                    f" {there[behind][:40]!r} at {behind}, which was known to be there at {earliest:.6f} s"
                )
            value, since, asked = witnessed.get(offset, (b"", inf, inf))
            if value == there[offset] and since < earliest and asked > lost_at:
                earliest, behind = since, offset


def _check_told(what: str, told: Told, there: dict[int, bytes]) -> None:
    found = there.get(told.offset)
    if found != told.value:
        seen = "nothing" if found is None else repr(found[:40])
        raise SafetyViolation(
            f"{told.partition}: {told.value[:40]!r} was {what} at offset {told.offset} at {told.time:.6f} s, "
            f"but {seen} is there"
        )
