"""Everything that clients have learned about a compacted topic, and the checks of compaction. PURE.

Each record has a unique id in a header, which also distinguishes tombstones. Compaction guarantees:

1. A record remains complete at its offset until a newer record of its key replaces it. A tombstone remains until
   its retention time is over. A record occurs at no other offset.
2. The newest record of a key is in the log. An older record of the key is in the log only while the newest record is
   there, too. So no old value reappears.
3. A tombstone that is the newest record of its key remains for `delete.retention.ms` after it was written.
4. No record is removed before it is older than `min.compaction.lag.ms`.
5. A reader that is never further behind than `delete.retention.ms` ends with the same table as a reader of the
   remaining records.
6. All replicas have the same record at each offset, and the same table of records that no client asked to delete.

A table has the newest record of each key. A replica that was down for longer than `delete.retention.ms` may have
missed a tombstone, and keeps the value (as in Kafka). So keys with a tombstone of that age are left out when tables
are compared.

Records that a client asked to delete may be missing. A replica may still have their bytes, because DeleteRecords
removes only whole segments, and otherwise just raises the log start offset. A replica whose log is replaced begins at
the log start offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from sim.history import SafetyViolation

__all__ = ["Found", "KeyedHistory", "table_of"]


@attrs.frozen
class Found:
    """A record that a client has read."""

    offset: int
    record_id: bytes
    key: bytes
    value: bytes | None


@attrs.define
class _Sent:
    """A record that a client has sent, with its offset once that is known."""

    partition: int
    key: bytes
    value: bytes | None
    sent_at: float
    offset: int | None = None
    is_refused: bool = False
    """True if the record's send has certainly failed."""

    def is_tombstone_of(self, now: float, age_ms: int) -> bool:
        """True if the record is a tombstone, is at least `age_ms` old, and may be in the log."""
        return self.value is None and not self.is_refused and (now - self.sent_at) * 1000 >= age_ms


@attrs.define
class KeyedHistory:
    """All records that clients have sent to the topic and read from it. Times are virtual seconds.

    The clocks of the nodes differ by at most `clocks_off_ms`.
    """

    delete_retention_ms: int
    min_compaction_lag_ms: int
    clocks_off_ms: int
    _sent: dict[bytes, _Sent] = attrs.field(factory=dict, init=False)
    _at: dict[tuple[int, int], bytes] = attrs.field(factory=dict, init=False)
    """The ids of records by (partition, offset)."""
    _asked_below: dict[int, int] = attrs.field(factory=dict, init=False)

    # -- events of clients

    def send(self, record_id: bytes, partition: int, key: bytes, value: bytes | None, now: float) -> None:
        """Note that a record is about to be sent."""
        assert record_id not in self._sent
        self._sent[record_id] = _Sent(partition, key, value, now)

    def acknowledge(self, record_id: bytes, offset: int) -> None:
        """Note the offset of a record. Raises `SafetyViolation` if the record was seen at another offset."""
        self._place(self._sent[record_id].partition, offset, record_id, "an acknowledgement")

    def refuse(self, record_id: bytes) -> None:
        """Note that a send has certainly failed, so that no client may ever read the record."""
        self._sent[record_id].is_refused = True

    def ask_to_delete(self, partition: int, offset: int) -> None:
        """Note a client's request to delete the records below `offset`."""
        self._asked_below[partition] = max(offset, self._asked_below.get(partition, 0))

    def see(self, who: str, partition: int, found: Found) -> None:
        """Note a committed record that a client has read. Raises `SafetyViolation` unless it was sent in this form."""
        sent = self._sent.get(found.record_id)
        where = f"{partition} at {found.offset}"
        if sent is None or (sent.partition, sent.key, sent.value) != (partition, found.key, found.value):
            raise SafetyViolation(f"keyed: {who} has read {found} in partition {where}, and sent was {sent}")
        if sent.is_refused:
            raise SafetyViolation(
                f"keyed: {who} has read {found} in partition {where}, whose send has failed"
            )
        self._place(partition, found.offset, found.record_id, who)

    def _place(self, partition: int, offset: int, record_id: bytes, who: str) -> None:
        sent = self._sent[record_id]
        there = self._at.setdefault((partition, offset), record_id)
        if sent.offset is None:
            sent.offset = offset
        if there != record_id or sent.offset != offset:
            raise SafetyViolation(
                f"keyed: by {who} {record_id!r} is at {offset} of partition {partition}, known are {there!r} there, and "
                f"offset {sent.offset} of it"
            )

    @property
    def known(self) -> int:
        """The number of records whose offsets are known."""
        return len(self._at)

    # -- checks ------------------------------------------------------------------------------------

    def check(self, partition: int, found: Sequence[Found], now: float) -> int:
        """Check all remaining records of a partition. Return how many known records were removed.

        Raises `SafetyViolation`.
        """
        last = -1
        for each in found:
            if each.offset <= last:
                raise SafetyViolation(f"keyed: offset {each.offset} of partition {partition} follows {last}")
            last = each.offset
            self.see("the auditor", partition, each)
        left = {each.offset for each in found}
        newest_left = {each.key: each.offset for each in found}
        of_key: dict[bytes, list[_Sent]] = {}
        for sent in self._sent.values():
            if sent.partition == partition:
                of_key.setdefault(sent.key, []).append(sent)
        gone = 0
        for key, records in of_key.items():
            gone += self._check_key(partition, key, records, left, newest_left.get(key), now)
        return gone

    def _check_key(
        self,
        partition: int,
        key: bytes,
        records: list[_Sent],
        left: set[int],
        newest_left: int | None,
        now: float,
    ) -> int:
        """Check one key: its newest known record must remain unless it may be removed, and no young record may be
        removed.
        """
        asked_below = self._asked_below.get(partition, 0)
        known = [each for each in records if each.offset is not None and each.offset >= asked_below]
        missing = [each for each in known if each.offset not in left]
        for each in missing:
            age_ms = (now - each.sent_at) * 1000
            if age_ms < self.min_compaction_lag_ms - self.clocks_off_ms:
                raise SafetyViolation(
                    f"keyed: {each} of partition {partition} is gone after {age_ms:.0f} ms, and min.compaction.lag.ms is "
                    f"{self.min_compaction_lag_ms}"
                )
        if not known:
            return 0
        newest = max(known, key=lambda each: each.offset or 0)
        assert newest.offset is not None
        is_loose = any(each.is_tombstone_of(now, self._deletes_after_ms) for each in records)
        if newest_left is not None and newest_left < newest.offset and not is_loose:
            raise SafetyViolation(
                f"keyed: key {key!r} of partition {partition} is back at {newest_left}, and {newest} is gone"
            )
        if newest_left is None and not self._may_be_gone(newest, records, now):
            raise SafetyViolation(
                f"keyed: key {key!r} is gone from partition {partition}, with its newest record {newest}"
            )
        return len(missing)

    def _may_be_gone(self, newest: _Sent, records: list[_Sent], now: float) -> bool:
        """True if a tombstone may have removed all records of the key. This tombstone is the key's newest record, or
        a later one with unknown outcome.
        """
        return any(
            each.is_tombstone_of(now, self._deletes_after_ms)
            for each in records
            if each is newest or each.offset is None
        )

    @property
    def _deletes_after_ms(self) -> int:
        """The age in milliseconds at which a tombstone may be removed."""
        return self.delete_retention_ms - self.clocks_off_ms

    def _loose_keys(self, partition: int, now: float) -> set[bytes]:
        """Return the keys with a tombstone that may have been removed."""
        return {
            each.key
            for each in self._sent.values()
            if each.partition == partition and each.is_tombstone_of(now, self._deletes_after_ms)
        }

    def check_reader(
        self, who: str, partition: int, table: Mapping[bytes, Found], left: Mapping[bytes, Found], now: float
    ) -> None:
        """Compare the table of a reader that was never too far behind with the table of the remaining records. Raises
        `SafetyViolation`.
        """
        if self._asked_below.get(partition):
            return
        loose = self._loose_keys(partition, now)
        mine, theirs = (_values(each.values(), loose) for each in (table, left))
        if mine != theirs:
            raise SafetyViolation(
                f"keyed: {who} ends with another table of partition {partition}: {_difference(mine, theirs)}"
            )

    def check_replicas(self, partition: int, replicas: Mapping[str, Sequence[Found]], now: float) -> None:
        """Check that all replicas have the same table, and the same record at each offset. Raises `SafetyViolation`.

        `replicas` has by name all records in their segments, even below the log start.
        """
        loose = self._loose_keys(partition, now)
        asked_below = self._asked_below.get(partition, 0)
        first_name, first = "", None
        for name, found in replicas.items():
            for each in found:
                self.see(name, partition, each)
            kept = [each for each in found if each.offset >= asked_below]
            table = _values(table_of(kept).values(), loose)
            if first is None:
                first_name, first = name, table
            elif table != first:
                raise SafetyViolation(
                    f"keyed: {name} and {first_name} differ in partition {partition}: {_difference(table, first)}"
                )


def table_of(found: Sequence[Found]) -> dict[bytes, Found]:
    """Return the newest record of each key."""
    return {each.key: each for each in found}


def _values(found: Iterable[Found], loose: set[bytes]) -> dict[bytes, Found]:
    """Return the records that have a value, by key. Leave out the keys in `loose`."""
    return {each.key: each for each in found if each.value is not None and each.key not in loose}


def _difference(mine: Mapping[bytes, Found], theirs: Mapping[bytes, Found]) -> str:
    keys = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
    return ", ".join(f"{key!r}: {mine.get(key)} and {theirs.get(key)}" for key in keys[:3])
