"""All strings, numbers and lists of the coordinators' logs at their bounds, reached by requests to their state
machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import attrs
import pytest

from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.groups.listing import DescribeGroup
from odradek.data_plane.groups.record_sizes import group_bytes
from odradek.data_plane.transactions.state import Transaction, TransactionStatus, record_of, state_of
from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode, LocalProtocolError
from odradek.wire.messages.coordinator_records import TransactionLogKey, TransactionLogValue
from odradek.wire.messages.describe_groups import DescribeGroupsResponse
from odradek.wire.messages.write_txn_markers import WritableTxnMarker, WriteTxnMarkersRequest
from odradek.wire.record_batch import RecordBatchBuilder
from tests.bounds import coordinator_rows as table
from tests.bounds.coordinator_rows import Coordinator, CoordinatorRow, Step
from tests.bounds.fields import STRING_BYTES_MAX, Field, fields_of, values_at
from tests.bounds.rows import NOTHING, UNSENDABLE, WRITTEN, Sent, expected, first_error

MODULES = ("coordinator_records", "share_group_records", "streams_group_records")


def group_types() -> list[type]:
    """Return the classes of the keys and values in `__consumer_offsets`, in the order of the schema."""
    modules = [import_module(f"odradek.wire.messages.{name}") for name in MODULES]
    types = dict.fromkeys(
        cls for module in modules for table in (module.KEYS, module.VALUES) for cls in table.values()
    )
    return [cls for cls in types if not cls.__name__.startswith("TransactionLog")]


def is_written(cls: type) -> bool:
    return not cls.__name__.startswith(tuple(table.GROUP_TYPES_NEVER_WRITTEN))


GROUP_FIELDS = [field for cls in group_types() if is_written(cls) for field in fields_of(cls)]
TRANSACTION_FIELDS = [field for cls in (TransactionLogKey, TransactionLogValue) for field in fields_of(cls)]


@pytest.mark.parametrize(
    ("rows", "fields"),
    [(table.GROUP_ROWS, GROUP_FIELDS), (table.TRANSACTION_ROWS, TRANSACTION_FIELDS)],
    ids=["groups", "transactions"],
)
def test_every_field_has_a_row(rows: Mapping[str, CoordinatorRow], fields: Sequence[Field]) -> None:
    """If the schema gets a new field, a row must say which request leads to it, or why none does."""
    assert sorted(rows) == sorted(field.path for field in fields)


def encodes(records: Sequence[Any]) -> bool:
    try:
        for each in records:
            each.encoded_key(), each.encoded_value()
    except LocalProtocolError:
        return False
    return True


def outcome(
    begin: Callable[[Sequence[Any]], Coordinator], probe: Step, row: Sent, field: Field, value: Any
) -> str:
    """Send a value and return its outcome. Check that the coordinator goes on and answers everybody."""
    before = row.before(value)
    if not encodes(before):
        return UNSENDABLE
    coordinator = begin(before)
    records: list[Any] = []
    errors: list[str] = []
    for each in row.make(value):
        step = each(coordinator) if callable(each) else each
        if not step.arrives:
            return UNSENDABLE
        told, reply = coordinator.ask(step)
        records += told
        errors.append(first_error(reply.answers))
        assert not coordinator.not_encoded, "the answer is that of a bug"
        if errors[-1] != NOTHING:
            break
    _, reply = coordinator.ask(probe)
    assert len(reply.answers) == 1
    assert not coordinator.failed
    name = field.path.split(".")[0]
    messages = [one for each in records for one in (each.key, each.value) if type(one).__name__ == name]
    found = [one for each in messages for one in values_at(each, field.path)]
    return WRITTEN if row.stored(value) in found else errors[-1]


def check(
    begin: Callable[[Sequence[Any]], Coordinator], probe: Step, row: CoordinatorRow, field: Field
) -> None:
    assert not isinstance(row, str)
    for each in row if isinstance(row, tuple) else (row,):
        wanted = expected(each, field)
        found = {name: outcome(begin, probe, each, field, value) for name, value, _ in wanted}
        assert found == {name: told for name, _, told in wanted}


def reached(rows: Mapping[str, CoordinatorRow], fields: Sequence[Field]) -> list[Any]:
    return [
        pytest.param(field, id=field.path)
        for field in fields
        if not isinstance(rows.get(field.path, ""), str)
    ]


@pytest.mark.parametrize("field", reached(table.GROUP_ROWS, GROUP_FIELDS))
def test_every_value_of_a_group_has_its_answer(field: Field) -> None:
    """At the bound of a field the record has the value, and beyond it the client gets an error. The coordinator goes
    on."""
    check(table.groups, table.GROUP_PROBE, table.GROUP_ROWS[field.path], field)


@pytest.mark.parametrize("field", reached(table.TRANSACTION_ROWS, TRANSACTION_FIELDS))
def test_every_value_of_a_transaction_has_its_answer(field: Field) -> None:
    """At the bound of a field the record has the value, and beyond it the client gets an error. The coordinator goes
    on."""
    check(table.transactions, table.TRANSACTION_PROBE, table.TRANSACTION_ROWS[field.path], field)


def test_a_groups_record_is_no_larger_than_was_asked() -> None:
    """A group may be refused by the estimated size of its record. This estimate is never below the record's real
    size."""
    long = "\u20ac" * 10_000
    joined = table.join(long, group_instance_id=long, protocol_type=long, protocol=long)
    coordinator = table.groups()
    written: list[Any] = []
    for each in table.stable(joined):
        written += coordinator.ask(each(coordinator) if callable(each) else each)[0]
    builder = RecordBatchBuilder()
    builder.append(table.WALL_MS, written[-1].encoded_key(), written[-1].encoded_value())
    size = len(builder.build())
    group = coordinator.machine.membership.groups["g"]
    assert size <= group_bytes(group, {}) <= size + 100


def test_a_group_that_is_not_there_is_described_whatever_its_name() -> None:
    """If a group's name is as long as a string may be, the answer about the missing group still fits its message."""
    name = "x" * STRING_BYTES_MAX
    _, reply = table.groups().ask(Step(DescribeGroup(name), version=6))
    answer = DescribeGroupsResponse(groups=reply.answers)
    assert (
        decode(DescribeGroupsResponse, 6, encode(answer, 6)).groups[0].error_code
        == ErrorCode.GROUP_ID_NOT_FOUND
    )


@pytest.mark.parametrize("version", [-1, 0, 2, 127, 128, (1 << 15) - 1])
def test_a_transaction_whose_markers_no_request_can_hold_is_left_out(version: int) -> None:
    """A foreign record may name any transaction version. It is skipped if no request could hold the markers of that
    version."""
    ending = Transaction("t", 7, 1, 10, TransactionStatus.PREPARE_COMMIT, frozenset({("t", 0)}))
    record = record_of(attrs.evolve(ending, client_version=version), 1)
    skipped: list[str] = []
    state = state_of(Latest({record.encoded_key(): record.encoded_value()}), skipped)
    marker = WritableTxnMarker(7, 1, True, [], 0, version)
    assert bool(state.transactions) == fits(WriteTxnMarkersRequest([marker])) == (not skipped)


def fits(message: WriteTxnMarkersRequest) -> bool:
    """True if the request can be encoded and a reader accepts its transaction version."""
    marker = message.markers[0]
    if marker.transaction_version < 0:
        return False
    try:
        return bool(encode(message, message.VALID_VERSIONS[1]))
    except LocalProtocolError:
        return False
