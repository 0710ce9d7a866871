"""Tables for people, JSON for scripts."""

from __future__ import annotations

import pytest

from odradek.cli.output import bytes_field, table


def test_columns_are_aligned_numbers_on_the_right_without_trailing_blanks() -> None:
    """Two spaces between columns; what is missing shows as a dash."""
    assert table(
        ("TOPIC", "PARTITIONS", "RACK"),
        [("flights", 6, None), ("a", 12, "rack-1")],
    ) == (
        "TOPIC    PARTITIONS  RACK\n"
        "flights           6  -\n"
        "a                12  rack-1\n"
    )  # fmt: skip


def test_a_table_without_rows_is_its_header() -> None:
    """Nothing there is an answer too."""
    assert table(("TOPIC", "PARTITIONS"), []) == "TOPIC  PARTITIONS\n"


def test_lists_and_truths_are_words() -> None:
    """Replica lists as Kafka's tools write them."""
    assert table(("ISR", "INTERNAL"), [((1, 2), True), ((), False)]) == "ISR  INTERNAL\n1,2  yes\n-    no\n"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"abc", {"value": "abc"}),
        ("ä".encode(), {"value": "ä"}),
        (b"", {"value": ""}),
        (None, {"value": None}),
        (b"\xff\x00", {"value_base64": "/wA="}),
    ],
)
def test_bytes_in_json_are_text_or_base64(data: bytes | None, field: dict[str, str | None]) -> None:
    """Nothing is lost and nothing is guessed: the name says which it is."""
    assert bytes_field("value", data) == field
