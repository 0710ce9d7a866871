"""The folds of data logs and coordinators' logs: the meaning of each batch, and how they find a bug in the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.groups import state as groups_state
from odradek.data_plane.log.parts import producer_entry
from odradek.data_plane.log.parts.producer_recovery import note_batch
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.wire.batches.batch_header import BatchHeader, parse_header
from odradek.wire.batches.records import RecordBatchBuilder, records
from odradek.wire.batches.transaction_markers import build_marker, parse_marker
from odradek.wire.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from odradek.wire.metadata_frames import encode_coordinator_key, encode_coordinator_value
from odradek.wire.structure import Message
from sim.checks.derived.derived_state import _check_entry
from sim.checks.derived.group_states import groups_difference
from sim.checks.folds.coordinator_folds import GroupsFold, TransactionsFold
from sim.checks.folds.producer_fold import EndedFold, FoldedBatch, ProducersFold
from sim.history import SafetyViolation

Placed = tuple[BatchHeader, bytes]
Records = Sequence[tuple[bytes, bytes | None]]


def data(offset: int, records: Records, producer: int = -1, epoch: int = 0, sequence: int = -1) -> Placed:
    """Build a data batch, transactional if it has a producer."""
    builder = RecordBatchBuilder(
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence,
        is_transactional=producer >= 0,
    )
    for key, value in records:
        builder.append(offset, key, value)
    batch = bytes(builder.build())
    return parse_header(batch), batch


def marker(offset: int, producer: int, *, is_commit: bool, epoch: int = 0, coordinator: int = 0) -> Placed:
    """Build a marker at an offset."""
    batch = build_marker(producer, epoch, coordinator, is_commit=is_commit, timestamp_ms=offset)
    batch[:8] = offset.to_bytes(8, "big")
    return parse_header(batch), bytes(batch)


# --- producers


def folded(batches: Sequence[Placed]) -> ProducersFold:
    """Fold batches of a data log."""
    fold = ProducersFold()
    for header, batch in batches:
        fold.take(header, batch)
    return fold


def written(offset: int, producer: int, epoch: int, sequence: int, count: int = 1) -> Placed:
    """Build a producer's batch of some records."""
    return data(offset, [(b"k", b"v")] * count, producer, epoch, sequence)


def test_the_last_five_batches_of_an_epoch_count() -> None:
    """Only a producer's last five batches of its epoch are kept, and none from before a gap or of an older epoch."""
    first = [written(2 * number, 7, 0, 2 * number, 2) for number in range(6)]
    (fold,) = folded(first).producers.values()
    assert [each.last_offset for each in fold.batches] == [3, 5, 7, 9, 11]
    assert fold.batches[-1] == FoldedBatch(11, 11, 1, 10)
    (after_gap,) = folded([*first, written(12, 7, 0, 40)]).producers.values()
    assert [each.last_offset for each in after_gap.batches] == [12]
    (newer,) = folded([*first, written(12, 7, 1, 0)]).producers.values()
    assert (newer.epoch, len(newer.batches), newer.open_from) == (1, 1, 0)
    (wrapped,) = folded([written(0, 7, 0, (1 << 31) - 1), written(1, 7, 0, 0)]).producers.values()
    assert len(wrapped.batches) == 2


def test_a_transaction_lasts_until_its_marker() -> None:
    """Stable records end before the first transaction that is open or whose marker is not yet committed."""
    batches = [
        written(0, 7, 0, 0),
        written(1, 8, 0, 0),
        marker(2, 7, is_commit=False, epoch=1, coordinator=3),
    ]
    fold = folded(batches)
    assert fold.ended == [EndedFold(7, 0, 2, 1, True)]
    assert fold.open() == {1: 8}
    assert list(fold.undecided(3)) == [1]
    assert sorted(fold.undecided(2)) == [0, 1]
    assert (fold.producers[7].epoch, fold.producers[7].coordinator_epoch) == (1, 3)
    assert not fold.producers[7].batches
    repeated = folded([*batches, marker(3, 7, is_commit=True, epoch=1, coordinator=2)])
    assert len(repeated.ended) == 1
    assert repeated.fallen is not None


def random_log(random: Random) -> Iterator[Placed]:
    """Yield batches of three producers that brokers would accept."""
    offset = 0
    epochs, sequences = dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    for _ in range(40):
        producer = random.randrange(3)
        if random.random() < 0.3:
            epochs[producer] += random.random() < 0.5
            sequences[producer] = 0 if random.random() < 0.5 else sequences[producer]
            yield marker(offset, producer, is_commit=random.random() < 0.5, epoch=epochs[producer])
            offset += 1
        else:
            count = random.randrange(1, 4)
            yield written(offset, producer, epochs[producer], sequences[producer], count)
            sequences[producer] += count + (random.random() < 0.05)
            offset += count


def compare_producers(seed: int) -> None:
    """Compare the product's state with the fold after each batch of a random log."""
    state, fold = ProducerState(), ProducersFold()
    for header, batch in random_log(Random(seed)):
        note_batch(state, header, header.base_offset, header.max_timestamp, batch)
        fold.take(header, batch)
        assert sorted(state.entries) == sorted(fold.producers)
        for producer_id, entry in fold.producers.items():
            _check_entry("a log", producer_id, state.entries[producer_id], entry, has_gaps=False)
        assert dict(state.ongoing) == fold.open()
        for high_watermark in (header.base_offset, header.next_offset):
            stable = state.first_unstable_offset(high_watermark)
            assert stable == min(fold.undecided(high_watermark), default=(1 << 63) - 1)


def compare_all() -> None:
    """Compare the states on twenty random logs."""
    for seed in range(20):
        compare_producers(seed)


@pytest.mark.parametrize("seed", range(20))
def test_the_product_knows_the_same_producers(seed: int) -> None:
    """Product and fold have the same producers after each batch of a random log."""
    compare_producers(seed)


def _four_batches(packed: bytes, sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> bytes:
    return OLDER(packed, sequence, last_offset, delta, timestamp_ms)[: 3 * producer_entry.OLDER.size]


def _six_batches(packed: bytes, sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> bytes:
    older = OLDER(packed, sequence, last_offset, delta, timestamp_ms)
    return older + packed[producer_entry._OLDEST_AT :] if older else older


OLDER = producer_entry.older_batches


@pytest.mark.parametrize("wrong", [_four_batches, _six_batches, lambda *_: b""])
def test_another_number_of_batches_is_noticed(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., bytes]
) -> None:
    """If the product keeps more or fewer batches of a producer than the fold, the comparison finds it."""
    monkeypatch.setattr("odradek.data_plane.log.parts.producer_state.older_batches", wrong)
    with pytest.raises(SafetyViolation, match="producers: a log knows of producer"):
        compare_all()


# --- coordinators


def record(key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
    """Encode a coordinator's record."""
    return encode_coordinator_key(key), None if value is None else encode_coordinator_value(value)


def commit(offset: int | None, partition: int = 0) -> tuple[bytes, bytes | None]:
    """Encode a commit of group g, or its tombstone."""
    value = None if offset is None else OffsetCommitValue(offset, -1, "", 5)
    return record(OffsetCommitKey("g", "t", partition), value)


def groups(batches: Sequence[Placed]) -> GroupsFold:
    """Fold a partition of `__consumer_offsets`."""
    fold = GroupsFold()
    for header, batch in batches:
        fold.take(header, batch)
    return fold


def committed(fold: GroupsFold) -> dict[int, int]:
    """Return the committed offsets of group g by partition."""
    return {partition: value.offset for (_, _, partition), (_, value) in fold.offsets.items()}


def test_offsets_of_transactions_count_from_their_markers() -> None:
    """A transaction's offsets count from its marker, unless a later plain commit or a tombstone replaced them. Offsets
    of an aborted transaction never count."""
    pending = [data(0, [commit(3), commit(4, 1)], 7)]
    assert committed(groups(pending)) == {}
    assert committed(groups([*pending, marker(2, 7, is_commit=True)])) == {0: 3, 1: 4}
    assert committed(groups([*pending, marker(2, 7, is_commit=False)])) == {}
    overtaken = [*pending, data(2, [commit(9)]), marker(3, 7, is_commit=True)]
    assert committed(groups(overtaken)) == {0: 9, 1: 4}
    deleted = [*pending, data(2, [commit(None)]), marker(3, 7, is_commit=True)]
    assert committed(groups(deleted)) == {1: 4}


def test_groups_and_transactional_ids_have_their_last_values() -> None:
    """For groups and transactional ids the last value counts, and a tombstone removes it."""
    first, second = (GroupMetadataValue("consumer", number, "range", "m", 1, []) for number in (1, 2))
    key = GroupMetadataKey("g")
    log = [data(0, [record(key, first), record(key, second)])]
    assert groups(log).metadata == {"g": second}
    assert groups([*log, data(2, [record(key, None)])]).metadata == {}
    fold = TransactionsFold()
    value = TransactionLogValue(producer_id=5, transaction_status=1)
    fold.take(*data(0, [record(TransactionLogKey("id"), value), record(TransactionLogKey("no"), value)]))
    fold.take(*data(2, [record(TransactionLogKey("no"), None)]))
    assert fold.values == {"id": value}


def random_commits(random: Random) -> Iterator[Placed]:
    """Yield plain and transactional commits, tombstones and markers of one group."""
    is_open = dict.fromkeys(range(2), False)
    for offset in range(30):
        producer = random.randrange(3) - 1
        if producer >= 0 and is_open[producer] and random.random() < 0.5:
            is_open[producer] = False
            yield marker(offset, producer, is_commit=random.random() < 0.7)
        else:
            deletes = producer < 0 and random.random() < 0.2
            yield data(offset, [commit(None if deletes else offset, random.randrange(2))], producer)
            if producer >= 0:
                is_open[producer] = True


def loaded(batches: Sequence[Placed]) -> groups_state.GroupsState:
    """Load the product's state of a partition of `__consumer_offsets`."""
    latest = Latest()
    for header, batch in batches:
        if header.is_control:
            found = parse_marker(batch)
            assert found is not None
            latest.end(header.producer_id, not found.is_abort)
            continue
        for each in records(batch, decompressed_bytes_max=1 << 20):
            assert each.key is not None
            if header.producer_id >= 0:
                latest.put_pending(header.producer_id, each.offset, each.key, each.value)
            else:
                latest.put(each.offset, each.key, each.value)
    return groups_state.state_of(latest, [])


@pytest.mark.parametrize("seed", range(40))
def test_the_product_loads_the_same_offsets(seed: int) -> None:
    """Product and fold load the same offsets from any log of commits."""
    batches = list(random_commits(Random(seed)))
    for end in range(len(batches)):
        assert groups_difference(groups(batches[:end]), loaded(batches[:end])) is None


def _last_marker_wins(latest: Latest, producer_id: int, is_commit: bool) -> None:
    for each in latest.pending.pop(producer_id, ()):
        if is_commit:
            latest.values[each.key] = each.value


def _tombstones_spare_pending(latest: Latest, offset: int, key: bytes, value: bytes | None) -> None:
    latest.values[key] = value
    latest._offsets[key] = offset


@pytest.mark.parametrize(("name", "wrong"), [("end", _last_marker_wins), ("put", _tombstones_spare_pending)])
def test_a_wrong_rule_of_commits_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., None]
) -> None:
    """If the product follows a wrong rule for commits, the comparison with the fold finds it."""
    monkeypatch.setattr(Latest, name, wrong)
    logs = (list(random_commits(Random(seed))) for seed in range(40))
    assert any(
        groups_difference(groups(log[:end]), loaded(log[:end])) for log in logs for end in range(len(log))
    )
