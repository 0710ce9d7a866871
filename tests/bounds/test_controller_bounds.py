"""All strings, numbers and lists of the metadata log at their bounds, reached by requests to a controller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import pytest

from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.replica.metadata_batches import encode_values
from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode, LocalProtocolError
from odradek.wire.messages.metadata_records import RECORDS
from odradek.wire.primitives import INT64_MAX
from odradek.wire.structure import Message
from tests.bounds.controller_rows import ROWS, SETTINGS, Cluster, configure, token
from tests.bounds.fields import Field, fields_of, values_at
from tests.bounds.rows import UNSENDABLE, WRITTEN, Sent, expected, first_error, sent, unaccounted

FIELDS = [field for cls in RECORDS.values() for field in fields_of(cls)]


def test_every_field_has_a_row() -> None:
    """If the schema gets a new field, a row must say which request leads to it, or why none does."""
    assert unaccounted(ROWS, FIELDS) == ([], [])


def arrived(request: Any) -> Any:
    """Return the request as the controller gets it, or None if it cannot be encoded."""
    if isinstance(request, Message):
        return sent(request)
    message = sent(request.message)
    return None if message is None else attrs.evolve(request, message=message)


def encodes(records: Iterable[Message]) -> bool:
    try:
        encode_values(list(records))
    except LocalProtocolError:
        return False
    return True


def outcome(row: Sent, field: Field, value: Any) -> str:
    """Send a value and return its outcome. Check that the controller goes on and that its answer can be encoded."""
    before = row.before(value)
    if not encodes(before):
        return UNSENDABLE
    cluster = Cluster(before)
    records: list[Any] = []
    response: Any = None
    for each in row.make(value):
        request = arrived(each)
        if request is None:
            return UNSENDABLE
        records, response = cluster.decide(request)
        assert not cluster.not_encoded, "the answer is that of a bug"
        assert encode(response, response.VALID_VERSIONS[1])
    alive, _ = cluster.decide(configure(4, "", "some.key", "1")[0])
    assert alive
    assert not cluster.failed
    assert encodes(records_of(cluster.machine.state)), "the state fits no snapshot"
    name = field.path.split(".")[0]
    found = [one for each in records if type(each).__name__ == name for one in values_at(each, field.path)]
    return WRITTEN if row.stored(value) in found else first_error(response)


@pytest.mark.parametrize(
    "field", [each for each in FIELDS if isinstance(ROWS.get(each.path), Sent)], ids=lambda each: each.path
)
def test_every_value_has_its_answer(field: Field) -> None:
    """At the bound of a field the record has the value, and beyond it the client gets an error. The controller
    goes on."""
    row = ROWS[field.path]
    assert isinstance(row, Sent)
    wanted = expected(row, field)
    assert {name: outcome(row, field, value) for name, value, _ in wanted} == {
        name: told for name, _, told in wanted
    }


def test_a_token_may_last_for_ever() -> None:
    """With the largest `delegation.token.max.lifetime.ms`, a token's expiry is the largest time that a record
    can hold."""
    settings = attrs.evolve(SETTINGS, token_max_lifetime_ms=INT64_MAX, token_expiry_ms=INT64_MAX)
    cluster = Cluster(settings=settings)
    (record,), response = cluster.decide(token()[0])
    assert (response.error_code, record.max_timestamp) == (ErrorCode.NONE, INT64_MAX)
    assert response.expiry_timestamp_ms == record.expiration_timestamp == INT64_MAX
