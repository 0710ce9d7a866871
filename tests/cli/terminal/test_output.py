"""Output for people (tables) and for scripts (JSON): records, times and sizes as text."""

from __future__ import annotations

import argparse
import json

import pytest

from odradek.cli.failure import CliError
from odradek.cli.output import (
    RED,
    bytes_field,
    bytes_text,
    columns_of,
    plain,
    print_json,
    print_values,
    span_text,
    table,
    wrapped,
)
from odradek.cli.streams.record_format import (
    for_terminal,
    json_line,
    key_and_value,
    record_of_json,
    template,
)
from odradek.cli.times import moment, span
from odradek.client.consumer.consumer_types import ConsumerRecord


def test_columns_are_aligned_numbers_on_the_right_without_trailing_blanks() -> None:
    """Columns are two spaces apart, numbers are right-aligned, and a missing value shows as a dash."""
    assert table(
        ("TOPIC", "PARTITIONS", "RACK"),
        [("flights", 6, None), ("a", 12, "rack-1")],
    ) == (
        "TOPIC    PARTITIONS  RACK\n"
        "flights           6  -\n"
        "a                12  rack-1\n"
    )  # fmt: skip


def test_a_table_without_rows_is_its_header() -> None:
    """A table without rows prints its header."""
    assert table(("TOPIC", "PARTITIONS"), []) == "TOPIC  PARTITIONS\n"


def test_lists_and_truths_are_words() -> None:
    """Lists are joined by commas, as Kafka's tools print replicas. Booleans are `yes` and `no`."""
    assert table(("ISR", "INTERNAL"), [((1, 2), True), ((), False)]) == "ISR  INTERNAL\n1,2  yes\n-    no\n"


def test_a_number_that_json_lacks_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Infinity and NaN become strings, because JSON has no such numbers (RFC 8259) and Kafka allows infinite quotas."""
    print_json({"quotas": [{"value": float("inf")}, {"value": -1.5}], "least": (float("-inf"), float("nan"))})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    document = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert document == {"quotas": [{"value": "Infinity"}, {"value": -1.5}], "least": ["-Infinity", "NaN"]}


def test_names_of_strangers_move_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal codes, newlines and hidden characters in the name of a client or a group are printed as escapes."""
    name = "evil\033]0;title\007\nodradek: all is well\r\x9b2J\u202e\u2028"
    shown = "evil\\x1b]0;title\\x07\\nodradek: all is well\\r\\x9b2J\\u202e\\u2028"
    assert table(("GROUP",), [(name,)]) == f"GROUP\n{shown}\n"
    assert table(("MEMBERS",), [((name, "b"),)]) == f"MEMBERS\n{shown},b\n"
    print_values([("group", name)])
    print_json({"group": name})
    printed, document = capsys.readouterr().out.splitlines()
    assert printed == f"group  {shown}"
    assert document.isprintable()
    assert json.loads(document) == {"group": name}


def test_our_own_colours_and_all_letters_stay() -> None:
    """Printable characters stay unchanged, and so do our own colour codes."""
    assert plain("Zürich, 東京, é") == "Zürich, 東京, é"
    assert plain(f"\033[{RED}mgone\033[0m\033[8mhidden") == f"\033[{RED}mgone\033[0m\\x1b[8mhidden"


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
    """Bytes that are UTF-8 appear as text. Others appear in base64, under a key with the suffix `_base64`."""
    assert bytes_field("value", data) == field


def test_a_table_is_cut_to_the_terminal() -> None:
    """The last column is cut first, down to a readable width, then the widest. Numbers and headers are never cut."""
    rows = [("a" * 50, 123456, "b" * 50), ("short", 7, "c")]
    whole = table(("NAME", "N", "PATH"), rows)
    assert max(map(len, whole.splitlines())) == 50 + 2 + 6 + 2 + 50
    cut = table(("NAME", "N", "PATH"), rows, 100).splitlines()
    assert cut[1] == "a" * 50 + "  123456  " + "b" * 39 + "…"
    narrow = table(("NAME", "N", "PATH"), rows, 60).splitlines()
    assert narrow[1] == "a" * 25 + "…  123456  " + "b" * 23 + "…"
    assert max(map(len, narrow)) == 60
    tiny = table(("NAME", "N", "PATH"), rows, 10).splitlines()
    assert tiny[1] == "a" * 7 + "…  123456  " + "b" * 7 + "…"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("topic", 5),
        ("", 0),
        ("日本", 4),
        ("ｔ", 2),
        ("ﾄ", 1),
        ("한", 2),
        ("ü", 1),
        ("u\u0308", 1),
        ("🐟", 2),
        ("שָׁ", 1),
        ("ไม้", 2),
        ("…", 1),
    ],
)
def test_letters_take_the_columns_of_a_terminal(text: str, columns: int) -> None:
    """Wide letters of East Asia and emoji take two columns. Marks that stand upon a letter take none."""
    assert columns_of(text) == columns


def test_wide_letters_keep_columns_aligned_and_are_cut_in_time() -> None:
    """Names with wide letters leave the next column where it belongs, in whole and in cut tables."""
    rows = [("注文", 7, "x"), ("orders", 12, "東京" * 20)]
    lines = table(("TOPIC", "N", "PLACE"), rows).splitlines()
    assert lines[:2] == ["TOPIC    N  PLACE", "注文     7  x"]
    for width in range(30, 60):
        cut = table(("TOPIC", "N", "PLACE"), rows, width).splitlines()
        assert all(columns_of(line) <= width for line in cut)
        assert cut[2].startswith("orders  12  東京")
        assert cut[2].endswith("…")
    assert wrapped("東京 大阪 京都", 9) == ["東京 大阪", "京都"]


def test_columns_that_matter_less_go_before_an_id_is_cut() -> None:
    """If the terminal is narrow, less important columns are dropped one by one. Ids are never cut."""
    header = ("NODE", "AGO", "SINCE", "ADDRESS", "ID")
    rows = [(1, "3 seconds ago", "5 seconds ago", "a" * 20, "i" * 22)]

    def shown(width: int | None) -> list[str]:
        return table(header, rows, width, less=("SINCE", "AGO"), whole=("ID",)).splitlines()

    assert shown(80) == shown(None) == table(header, rows).splitlines()
    assert shown(79)[0].split() == ["NODE", "AGO", "ADDRESS", "ID"]
    assert shown(65) == [
        "NODE  AGO            ADDRESS               ID",
        "   1  3 seconds ago  aaaaaaaaaaaaaaaaaaaa  iiiiiiiiiiiiiiiiiiiiii",
    ]
    assert shown(64)[1] == "   1  " + "a" * 20 + "  " + "i" * 22
    assert shown(40)[1] == "   1  " + "a" * 9 + "…  " + "i" * 22


def test_long_values_go_on_below() -> None:
    """Long values are wrapped between words. Colour codes do not count as width."""
    assert wrapped("3: words-0, words-1, words-2", None) == ["3: words-0, words-1, words-2"]
    assert wrapped("3: words-0, words-1, words-2", 20) == ["3: words-0, words-1,", "words-2"]
    assert wrapped("\033[31mab cd\033[0m", 5) == ["\033[31mab cd\033[0m"]
    assert wrapped("\033[31mab cd\033[0m", 4) == ["\033[31mab", "cd\033[0m"]
    assert wrapped("a" * 30, 20) == ["a" * 30]


def test_a_terminal_is_not_overrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a narrow terminal, a long value continues on the next line below its beginning."""
    monkeypatch.setattr("odradek.cli.output._width", lambda: 40)
    print_values([("under-replicated", "3: words-0, words-1, words-2, ..."), ("moving", 0)])
    assert capsys.readouterr().out == (
        "under-replicated  3: words-0, words-1,\n"
        "                  words-2, ...\n"
        "moving            0\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, None),
        (0, "0"),
        (999, "999 ms"),
        (1000, "1s"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (3_661_000, "1h 1m"),
        (90_061_000, "1d 1h"),
        (86_400_000 * 400, "400d"),
    ],
)
def test_spans_have_their_two_largest_units(milliseconds: int | None, text: str | None) -> None:
    """A duration is printed in its two largest units."""
    assert span_text(milliseconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, None), (-1, None), (0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (2048 * 1024, "2.0 MiB")],
)
def test_bytes_have_a_unit(count: int | None, text: str | None) -> None:
    """Sizes have binary units. An unknown size shows as a dash in tables, not as -1."""
    assert bytes_text(count) == text


RECORD = ConsumerRecord("t", 1, 42, 1_700_000_000_123, b"k", b"v:\xff", (("a", b"1"), ("b", None)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("%v", b"v:\xff\n"),
        (r"%t-%p@%o\t%k=%v\n", b"t-1@42\tk=v:\xff\n"),
        ("%T %d", b"1700000000123 2023-11-14T22:13:20.123Z\n"),
        ("100%% [%h]", b"100% [a=1,b=]\n"),
        (r"\\%k", b"\\k\n"),
    ],
)
def test_templates(text: str, line: bytes) -> None:
    """Templates use kcat's letters. A newline is added if the template has none."""
    assert template(text)(RECORD) == line


def test_a_record_in_json_comes_back() -> None:
    """`produce --input json` restores a record that `consume --json` printed, except for topic, partition and
    offset."""
    assert record_of_json(json_line(RECORD), 1) == (b"k", b"v:\xff", RECORD.headers, RECORD.timestamp)
    assert record_of_json(b'{"value":{"a":[1,"b"]}}', 1) == (None, b'{"a":[1,"b"]}', (), None)
    tombstone = RECORD._replace(value=None, headers=())
    assert record_of_json(json_line(tombstone), 1)[1] is None


HOSTILE = RECORD._replace(
    key=b"k\x1b[2J",
    value="a\tb\nc\r\x07\x7f\u009b31m Z\u00fcrich".encode() + b"\x9b",
    headers=(("h\x1b", b"\x00"),),
)
"""A record with control characters of a terminal."""


def test_records_of_strangers_move_no_terminal() -> None:
    """On a terminal, control characters of a record are escaped, except tab and newline. The template's own ones stay."""
    value = "a\tb\nc\\r\\x07\\x7f\\x9b31m Z\u00fcrich\\x9b"
    assert for_terminal(key_and_value(": "))(HOSTILE).decode() == f"k\\x1b[2J: {value}\n"
    shown = for_terminal(template("\x1b[1m%k %h %v"))(HOSTILE).decode()
    assert shown == f"\x1b[1mk\\x1b[2J h\\x1b=\\x00 {value}\n"
    assert for_terminal(key_and_value(None))(RECORD._replace(value=None)) == b"\n"
    assert key_and_value(None)(HOSTILE) == HOSTILE.value + b"\n", "in a pipe nothing changes"


def test_records_in_json_are_printable() -> None:
    """A JSON line has only printable characters, and the same record."""
    record = HOSTILE._replace(value="\u009b\u202e\x7f Z\u00fcrich".encode())
    line = json_line(record)
    assert line.decode().removesuffix("\n").isprintable()
    assert record_of_json(line, 1)[:2] == (record.key, record.value)
    assert "Z\u00fcrich" in json_line(RECORD._replace(value="Z\u00fcrich".encode())).decode()


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (-1, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (1_700_000_000_000_000, "1700000000000000"),
        ((1 << 63) - 1, "9223372036854775807"),
    ],
)
def test_dates_of_any_timestamp(timestamp: int, text: str) -> None:
    """A timestamp behind the year 9999 is shown as its number, and an unknown timestamp as a dash."""
    assert template("%d")(RECORD._replace(timestamp=timestamp)).decode() == f"{text}\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b'{"value":' + b"[" * 100_000,
        b'{"value_base64":"!"}',
        b'{"timestamp":"now"}',
        b'{"headers":[{}]}',
    ],
)
def test_what_is_no_record_names_its_line(line: bytes) -> None:
    """The error for an invalid JSON record gives the line number."""
    with pytest.raises(CliError, match="line 7 is not a record"):
        record_of_json(line, 7)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"valu":"x","key":"k"}', "there is no field 'valu' (did you mean 'value'?)"),
        (b'{"Timestamp":1}', "there is no field 'Timestamp' (did you mean 'timestamp'?)"),
        (
            b'{"zzz":1}',
            "there is no field 'zzz' (there are topic, partition, offset, timestamp, key, key_base64, ",
        ),
        (
            b'{"headers":[{"key":"h","val":"v"}]}',
            "there is no field 'val' of a header (did you mean 'value'?)",
        ),
        (b'{"value":"a","value":"b"}', "the line has 'value' twice"),
        (b'{"value":{"a":1,"a":2}}', "the line has 'a' twice"),
        (b'{"value":"a","value_base64":"YQ=="}', "the line has both 'value' and 'value_base64'"),
        (b'{"value_base64":7}', "its value_base64 is not a string"),
        (b'{"value":NaN}', "NaN is not a number of JSON"),
        (b'{"value":1e999}', "Out of range float values are not JSON compliant"),
        (b'{"value":"\\ud800"}', "its value has half of a surrogate pair at character 1"),
        (b'{"key":["\\udfff"]}', "its key has half of a surrogate pair at character 3"),
        (
            b'{"headers":[{"key":"\\ud800"}]}',
            "the key of a header has half of a surrogate pair at character 1",
        ),
        (b'{"timestamp":true}', "its timestamp is not a number of milliseconds"),
        (b'{"timestamp":-1}', "its timestamp is not a number of milliseconds"),
        (b'{"timestamp":1.5}', "its timestamp is not a number of milliseconds"),
        (b'{"timestamp":9223372036854775808}', "its timestamp is not a number of milliseconds"),
        (b'{"partition":2147483648}', "its partition is not a number"),
        (b'{"offset":"1"}', "its offset is not a number"),
        (b'{"topic":1}', "the topic is not a string"),
        (b'{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the line is nested too deeply"),
        (b'{"value":' + b"1" * 5000 + b"}", "Exceeds the limit"),
        (b"\xff\xfe{", ""),
    ],
    ids=lambda value: str(value[:40]),
)
def test_a_field_is_judged_where_it_is_given(line: bytes, reason: str) -> None:
    """Name, type, range and encoding of each field of a JSON record are checked. The error names the field."""
    with pytest.raises(CliError) as caught:
        record_of_json(line, 7)
    assert str(caught.value).startswith(f"line 7 is not a record in JSON: {reason}")


@pytest.mark.parametrize("headers", [b'[["h","v"]]', b'{"h":"v"}', b'"h"', b'[{"key":1}]', b"[{}]", b"7"])
def test_headers_in_another_form_are_told_their_own(headers: bytes) -> None:
    """If the headers have another shape, such as pairs or a map, the error shows the shape that is expected."""
    with pytest.raises(
        CliError, match=r'its headers are not a list of objects like \{"key": "h", "value": "v"\}'
    ):
        record_of_json(b'{"value":"v","headers":' + headers + b"}", 7)


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time may be ISO 8601, milliseconds, or a span before now."""
    monkeypatch.setattr("odradek.cli.times.time.time_ns", lambda: 10_000_000_000_000)
    assert moment("2023-11-14T22:13:20.123+00:00") == moment("@1700000000123") == 1_700_000_000_123
    assert moment("1h") == 10_000_000 - 3_600_000
    assert span("1.5m") == 90_000
    for text in ("", "yesterday", "1y", "@x", "-5m"):
        with pytest.raises(argparse.ArgumentTypeError):
            moment(text)
