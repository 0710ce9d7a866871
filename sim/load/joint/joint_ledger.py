"""The transactions and offset commits of a joint workload with their outcomes, and their checks, such as the order
of each key's records. PURE.

Rules for records, as a read_committed reader sees them:

1. A transaction that was acknowledged as committed counts as committed. A transaction that was aborted, or that no
   writer has tried to commit, is invisible. If the outcome is unknown, the transaction counts as committed if any
   of its records is visible.
2. In a topic that keeps everything, a committed transaction is visible completely, and only once.
3. In a compacted topic, the newest record of each key in any committed transaction is visible. An aborted record
   never replaces a committed record.
4. A key has one writer at a time, so its records stand in the order in which they were sent.
5. A record that a reader has seen remains, or a newer record of its key follows it.
6. A prepared transaction that was never ended still exists when a later process resumes it (KIP-939).

Rules for the group's offsets: commits take effect in the order of their records, not of the markers. So a commit
replaces an earlier commit if it was sent after the answer to the earlier commit had arrived. A commit that was sent
twice, or has no answer, may take effect after all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import inf

import attrs

from sim.history import SafetyViolation

__all__ = ["Commit", "Found", "Joint", "JointLedger", "Outcome", "joint_value"]


class Outcome(Enum):
    """The outcome of a transaction, as far as its writer knows it."""

    OPEN = "was never ended"
    TRIED = "was perhaps committed"
    COMMITTED = "was committed"
    ABORTED = "was aborted"


@attrs.frozen
class Found:
    """A record that a client has read."""

    offset: int
    key: bytes
    value: bytes


@attrs.define(eq=False)
class Joint:
    """A transaction. `records` has (serial number, key, value) by partition."""

    name: str
    is_explicit: bool
    """True if partitions and offsets are added by separate requests (`transaction.version` 1). Late requests may then
    join the next transaction.
    """
    records: dict[int, list[tuple[int, bytes, bytes]]] = attrs.Factory(dict)
    outcome: Outcome = Outcome.OPEN
    prepared: str = ""
    """The text that `prepare` returned, while a later process may still decide the outcome of the transaction;
    otherwise "".
    """
    ended: float = inf
    """The time when the transaction's commit was acknowledged, as a count of the ledger's events."""


@attrs.define(eq=False)
class Commit:
    """A commit of one offset. Times are counts of the ledger's events."""

    partition: int
    offset: int
    joint: Joint | None
    """The transaction that has this commit; None for a plain commit, outside any transaction."""
    asked: int
    answered: float = inf
    """The time when the commit was acknowledged. It is infinity if the request was sent more than once, since a copy of
    the request may still take effect.
    """
    is_taken: bool = False
    """True once the commit was acknowledged."""
    is_refused: bool = False
    """True if the commit certainly never takes effect."""

    def may_count(self) -> bool:
        """True if the group's offset may come from this commit."""
        joint = self.joint
        if joint is None:
            return not self.is_refused
        if joint.outcome in (Outcome.TRIED, Outcome.COMMITTED):
            return True
        # Before KIP-890, a late request joins the next transaction of the same epoch.
        return joint.is_explicit and self.answered == inf

    def counts_since(self) -> float:
        """Return the time (a count of events) since which this commit has certainly taken effect; infinity if that is
        uncertain.
        """
        if not self.is_taken:
            return inf
        return self.joint.ended if self.joint is not None else self.answered


def joint_value(name: str, serial: int, partition: int, filler: bytes) -> bytes:
    """Make the value of a record in a joint transaction."""
    return b"%s|%d|%d|" % (name.encode(), serial, partition) + filler


def _parsed(value: bytes) -> tuple[str, int, int]:
    name, serial, partition, _ = value.split(b"|", 3)
    return name.decode(), int(serial), int(partition)


@attrs.define(eq=False)
class JointLedger:
    """Everything that a joint workload's clients have done and seen."""

    name: str
    is_compacted: bool
    offsets_may_expire: bool = False
    joints: dict[str, Joint] = attrs.Factory(dict)
    commits: dict[int, list[Commit]] = attrs.Factory(dict)
    prepared_kept: int = 0
    """How many prepared transactions were found by a later process."""
    _serial: int = 0
    _time: int = 0
    _seen: dict[int, list[Found]] = attrs.Factory(dict)
    _counting: list[Joint] = attrs.Factory(list)
    """The transactions that count as committed in the final check."""

    def tick(self) -> int:
        """Advance the count of events, and return it."""
        self._time += 1
        return self._time

    # -- events of writers

    def begin(self, name: str, *, is_explicit: bool) -> Joint:
        """Record that a writer opens a transaction."""
        joint = self.joints[name] = Joint(name, is_explicit)
        return joint

    def send(self, joint: Joint, partition: int, key: bytes, filler: bytes) -> bytes:
        """Note that a record is about to be sent, and return the record's value."""
        self._serial += 1
        value = joint_value(joint.name, self._serial, partition, filler)
        joint.records.setdefault(partition, []).append((self._serial, key, value))
        return value

    def committed(self, joint: Joint) -> None:
        """Record that a transaction's commit was acknowledged."""
        joint.outcome, joint.ended = Outcome.COMMITTED, self.tick()

    def ask(self, partitions: Sequence[int], joint: Joint | None) -> list[Commit]:
        """Note a request that will commit an offset in each of these partitions. Each offset is unique."""
        asked = []
        for partition in partitions:
            self._serial += 1
            commit = Commit(partition, self._serial, joint, self.tick())
            self.commits.setdefault(partition, []).append(commit)
            asked.append(commit)
        return asked

    def answer(self, asked: Sequence[Commit], *, times: int) -> None:
        """Record that the request was acknowledged, after it was sent `times` times."""
        now = self.tick()
        for commit in asked:
            commit.is_taken = True
            if times == 1:
                commit.answered = now

    def resumed(self, joint: Joint | None, text: str | None) -> None:
        """Check the text that `resume` has returned for the transaction of the slot's previous process. Raises
        `SafetyViolation`.
        """
        if joint is None or not joint.prepared or joint.outcome is not Outcome.OPEN:
            return
        if text != joint.prepared:
            raise SafetyViolation(
                f"{self.name}: {joint.name} was prepared as {joint.prepared}, and its successor finds {text}"
            )
        self.prepared_kept += 1

    # -- checks of offsets -------------------------------------------------------------------------

    def check_offset(self, partition: int, found: int | None, asked: float, who: str) -> None:
        """Check the group's offset in an answer. `asked` is the time of the request, as a count of events. Raises
        `SafetyViolation`.
        """
        commits = self.commits.get(partition, [])
        certain = [each for each in commits if each.counts_since() < asked]
        where = f"{self.name}: {who}: offset {found} of partition {partition}"
        if found is None:
            if certain and not self.offsets_may_expire:
                raise SafetyViolation(f"{where}, and {_in_words(certain[-1])}")
            return
        source = next((each for each in commits if each.offset == found), None)
        if source is None:
            raise SafetyViolation(f"{where}: nobody has committed it")
        if not source.may_count():
            raise SafetyViolation(f"{where}: {_in_words(source)}")
        for each in certain:
            if each.asked > source.answered:
                raise SafetyViolation(f"{where}: {_in_words(source)}; {_in_words(each)} after it")

    # -- checks of records -------------------------------------------------------------------------

    def see(self, who: str, partition: int, found: Sequence[Found]) -> None:
        """Check committed records that a reader has received, in order. Raises `SafetyViolation`."""
        seen = self._seen.setdefault(partition, [])
        last = seen[-1].offset if seen else -1
        for each in found:
            last = self._check_one(who, partition, each, last)
            seen.append(each)

    def _check_one(self, who: str, partition: int, found: Found, last: int) -> int:
        name, serial, meant_for = _parsed(found.value)
        joint = self.joints.get(name)
        where = f"{self.name}: {who}: partition {partition} offset {found.offset}"
        if found.offset <= last:
            raise SafetyViolation(f"{where} follows {last}")
        if joint is None or (serial, found.key, found.value) not in joint.records.get(partition, ()):
            raise SafetyViolation(f"{where}: nobody has sent {found.value[:60]!r} to it (but {meant_for})")
        if joint.outcome in (Outcome.OPEN, Outcome.ABORTED):
            raise SafetyViolation(f"{where}: transaction {name} {joint.outcome.value}")
        return found.offset

    def check(self, content: Mapping[int, Sequence[Found]]) -> None:
        """Check the final committed records of all partitions. Raises `SafetyViolation`."""
        visible: dict[str, set[bytes]] = {}
        for partition, found in content.items():
            last = -1
            for each in found:
                last = self._check_one("the auditor", partition, each, last)
                visible.setdefault(_parsed(each.value)[0], set()).add(each.value)
            self._check_order(partition, found)
            self._check_seen(partition, found)
        counting = self._counting = [
            joint
            for joint in self.joints.values()
            if joint.outcome is Outcome.COMMITTED or joint.name in visible
        ]
        for partition, found in content.items():
            if self.is_compacted:
                self._check_newest(f"partition {partition}", partition, found, counting)
            else:
                self._check_whole(partition, found, counting)

    def _check_order(self, partition: int, found: Sequence[Found]) -> None:
        newest: dict[bytes, int] = {}
        for each in found:
            serial = _parsed(each.value)[1]
            if serial <= newest.get(each.key, 0):
                raise SafetyViolation(
                    f"{self.name}: {each.value[:60]!r} at {each.offset} of partition {partition} comes after a later record"
                )
            newest[each.key] = serial

    def _check_whole(self, partition: int, found: Sequence[Found], counting: Sequence[Joint]) -> None:
        there = [each.value for each in found]
        missing = set().union(*(self._values(joint, partition) for joint in counting)) - set(there)
        if missing or len(set(there)) != len(there):
            lost = min(missing)[:60] if missing else b""
            raise SafetyViolation(
                f"{self.name}: {lost!r} of a transaction that counts is not in partition {partition}, or another is there twice"
            )

    @staticmethod
    def _values(joint: Joint, partition: int) -> Iterator[bytes]:
        return (value for _, _, value in joint.records.get(partition, ()))

    def _check_newest(
        self, where: str, partition: int, found: Sequence[Found], counting: Sequence[Joint]
    ) -> None:
        newest: dict[bytes, tuple[int, bytes, bytes]] = {}
        for joint in counting:
            for each in joint.records.get(partition, ()):
                if each > newest.get(each[1], (0, b"", b"")):
                    newest[each[1]] = each
        there = {each.value for each in found}
        for key, (_, _, value) in newest.items():
            if value not in there:
                raise SafetyViolation(
                    f"{self.name}: {value[:60]!r}, the newest committed record of key {key!r}, is not in {where}"
                )

    def _check_seen(self, partition: int, found: Sequence[Found]) -> None:
        there = {each.offset: each for each in found}
        last_of = {each.key: each.offset for each in found}
        for each in self._seen.get(partition, ()):
            if there.get(each.offset) == each:
                continue
            if not self.is_compacted or each.offset in there or last_of.get(each.key, -1) < each.offset:
                raise SafetyViolation(
                    f"{self.name}: the reader had {each.value[:60]!r} at {each.offset} of partition {partition}, which is "
                    f"not there at the end"
                )
        seen = self._seen.get(partition, ())
        if not self.is_compacted and list(found[: len(seen)]) != list(seen):
            raise SafetyViolation(f"{self.name}: the reader has left out records of partition {partition}")

    def check_replica(self, where: str, partition: int, found: Sequence[Found]) -> None:
        """Check that a compacted replica has the newest committed record of each key. `found` includes aborted
        records.

        Raises `SafetyViolation`.
        """
        if self.is_compacted:
            self._check_newest(where, partition, found, self._counting)

    def figures(self) -> dict[str, int]:
        """Count the transactions by outcome, and the commits of offsets."""
        outcomes = [joint.outcome for joint in self.joints.values()]
        return {
            f"{self.name} committed": outcomes.count(Outcome.COMMITTED),
            f"{self.name} aborted": outcomes.count(Outcome.ABORTED),
            f"{self.name} undecided": outcomes.count(Outcome.OPEN) + outcomes.count(Outcome.TRIED),
            f"{self.name} offsets": sum(map(len, self.commits.values())),
            **({f"{self.name} kept": self.prepared_kept} if self.prepared_kept else {}),
        }


def _in_words(commit: Commit) -> str:
    of = (
        "a plain commit"
        if commit.joint is None
        else f"{commit.joint.name}, which {commit.joint.outcome.value}"
    )
    return f"offset {commit.offset} is of {of}, asked at {commit.asked}, answered at {commit.answered}"
