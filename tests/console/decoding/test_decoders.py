"""Which decoder shows which bytes, and what hostile bytes and registries may do."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.console.decoding.decoded import FORMATS
from odradek.console.decoding.decoders import RETRY_SECONDS, Decoders, DecodingSettings
from odradek.console.decoding.protobuf_schema import ProtobufSchema, compile_protobuf
from odradek.console.decoding.registry import (
    ANSWER_SECONDS_MAX,
    LOOK_UPS_AT_ONCE,
    LOOK_UPS_PER_SECOND,
    RegistrySettings,
)
from odradek.console.decoding.steps import Steps
from tests.console.decoding.schema_registry import SchemaRegistry
from tests.console.http.served import Lines

PLAIN = Decoders(DecodingSettings())
PROTO = """
syntax = "proto3";
package shop;
import "parts/common.proto";
import "google/protobuf/timestamp.proto";
message Order {
  string id = 1;
  repeated Item items = 2;
  map<string, int32> counts = 3;
  google.protobuf.Timestamp at = 4;
  Colour colour = 5;
  bytes raw = 6;
  message Item { int64 number = 1; parts.Note note = 2; }
}
message Other { bool flag = 1; }
enum Colour { RED = 0; BLUE = 1; }
"""
COMMON = 'syntax = "proto3"; package parts; message Note { string text = 1; }'


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    """A registry that speaks Confluent's protocol."""
    with SchemaRegistry() as running:
        yield running


def with_registry(registry: SchemaRegistry) -> Decoders:
    """Make decoders that ask this registry, and remember nothing yet."""
    return Decoders(DecodingSettings(RegistrySettings(registry.url)))


def framed(schema_id: int, data: bytes) -> bytes:
    """Put Confluent's frame before the bytes."""
    return b"\0" + schema_id.to_bytes(4, "big") + data


@given(st.binary(), st.sampled_from(FORMATS), st.integers(0, 100))
def test_any_bytes_in_any_format_are_shown(data: bytes, form: str, characters_max: int) -> None:
    """Any bytes are shown in any format, in at most as many characters as wished."""
    for topic in ("any", "__consumer_offsets", "__transaction_state"):
        for found in PLAIN.key_and_value(topic, data, data, (form, form), characters_max):
            assert found.text is not None
            assert len(found.text) <= characters_max
            json.dumps(found.text)


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", None),
        (b"", "text", ""),
        (b"words", "text", "words"),
        ("Grüße\n".encode(), "text", "Grüße\n"),
        (b'{"a": 1e999999999}', "json", '{"a": 1e999999999}'),
        (b"[1, 2]", "json", "[1, 2]"),
        (b"[1, 2", "text", "[1, 2"),
        (b"\xff\x00", "hex", "ff00"),
        (b"a\x00b", "hex", "610062"),
        (b"[" * 100_000, "text", "[" * 50),
        (b"[" + b"9" * 100_000 + b"]", "json", "[" + "9" * 49),
    ],
)
def test_bytes_without_a_schema(data: bytes | None, form: str, text: str | None) -> None:
    """Null, texts, JSON and other bytes are told apart; deep JSON is a text."""
    found = PLAIN.decode("any", "value", data, characters_max=50)
    assert (found.format, found.text) == (form, text)
    assert found.is_cut == (data is not None and len(data) > 50)


def test_a_character_at_the_cut_makes_no_text_binary() -> None:
    """A text whose cut falls into a character is still a text."""
    for shift in range(4):
        found = PLAIN.decode("any", "value", b"x" * shift + "😀".encode() * 1000, characters_max=100)
        assert found.format == "text"


def test_avro_by_registry(registry: SchemaRegistry) -> None:
    """A value with Confluent's frame is shown by the schema that it names, with types of another subject."""
    registry.add(5, "AVRO", '{"type": "record", "name": "a.Point", "fields": [{"name": "x", "type": "int"}]}')
    registry.add_version("point-value", 2, 5)
    registry.add(7, "AVRO", '{"type": "array", "items": "a.Point"}', [("a.Point", "point-value", 2)])
    decoders = with_registry(registry)
    found = decoders.decode("points", "value", framed(7, b"\x04\x0a\x0c\x00"))
    assert (found.format, found.text, found.schema_id, found.error) == ("avro", '[{"x":5},{"x":6}]', 7, None)
    asked = registry.requests
    decoders.decode("points", "value", framed(7, b"\x00"))
    assert registry.requests == asked
    wrong = decoders.decode("points", "value", framed(7, b"\xff"))
    assert (wrong.format, wrong.schema_id) == ("hex", 7)
    assert "the bytes end" in (wrong.error or "")


def test_protobuf_by_registry(registry: SchemaRegistry) -> None:
    """A Protobuf value is shown by the message that its frame names, with imports of another subject."""
    registry.add(20, "PROTOBUF", COMMON)
    registry.add_version("common", 1, 20)
    registry.add(21, "PROTOBUF", PROTO, [("parts/common.proto", "common", 1)])
    compiled = compile_protobuf(PROTO, {"parts/common.proto": COMMON})
    order = compiled.named("shop.Order")()
    order.id = "o-1"
    order.items.add(number=-5).note.text = "n"
    order.counts["a"] = 3
    order.at.FromJsonString("2026-02-03T04:05:06Z")
    order.colour = 1
    order.raw = b"\xff"
    decoders = with_registry(registry)
    found = decoders.decode("orders", "value", framed(21, b"\0" + order.SerializeToString()))
    assert found.error is None
    assert json.loads(found.text or "") == {
        "id": "o-1",
        "items": [{"number": -5, "note": {"text": "n"}}],
        "counts": {"a": 3},
        "at": "2026-02-03T04:05:06Z",
        "colour": "BLUE",
        "raw": "/w==",
    }
    inner = decoders.decode("orders", "value", framed(21, b"\x04\x00\x00\x08\x05"))
    assert (inner.format, inner.text) == ("protobuf", '{"number":5}')
    second = decoders.decode("orders", "value", framed(21, b"\x02\x02\x08\x01"))
    assert second.text == '{"flag":true}'
    for broken in (b"\x02\x20", b"\x00\xff", b"\xff" * 20, b""):
        assert decoders.decode("orders", "value", framed(21, broken)).format != "protobuf" or broken == b""


@pytest.mark.parametrize(
    ("fields", "data", "text"),
    [
        ("google.protobuf.Timestamp t = 1;", b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x3f", '{"t":{"seconds":4611686018427387903}}'),
        ("google.protobuf.Timestamp t = 1;", b"\x0a\x02\x08\x01", '{"t":"1970-01-01T00:00:01Z"}'),
        ("int32 ListFields = 1;", b"\x08\x01", '{"ListFields":1}'),
        ("int32 DESCRIPTOR = 1;", b"\x08\x01", '{"DESCRIPTOR":1}'),
        ("int32 FromString = 1;", b"\x08\x01", '{"FromString":1}'),
    ],
)  # fmt: skip
def test_protobuf_with_odd_times_and_names(
    registry: SchemaRegistry, fields: str, data: bytes, text: str
) -> None:
    """A moment beyond the calendar is shown by its numbers, and a field may have the name of a method."""
    imports = 'syntax = "proto3"; import "google/protobuf/timestamp.proto";'
    registry.add(23, "PROTOBUF", f"{imports} message M {{ {fields} }}")
    found = with_registry(registry).decode("odd", "value", framed(23, b"\0" + data))
    assert (found.text, found.error) == (text, None)


def test_a_schema_may_define_moments_itself(registry: SchemaRegistry) -> None:
    """A message with the name of a well-known type is shown by its own fields."""
    proto = 'syntax = "proto3"; package google.protobuf; message Timestamp { string x = 1; }'
    registry.add(24, "PROTOBUF", proto)
    found = with_registry(registry).decode("odd", "value", framed(24, b"\0\x0a\x01a"))
    assert (found.text, found.error) == ('{"x":"a"}', None)


@pytest.mark.parametrize("names", [("a", "a/b.proto"), ("odradek_main.proto/x", "c")])
def test_imports_that_are_files_and_directories(registry: SchemaRegistry, names: tuple[str, str]) -> None:
    """Imports whose names cannot be files side by side are an error of the schema."""
    registry.add(25, "PROTOBUF", COMMON)
    registry.add_version("odd", 1, 25)
    registry.add(26, "PROTOBUF", COMMON, [(name, "odd", 1) for name in names])
    found = with_registry(registry).decode("odd", "value", framed(26, b"\0"))
    assert "cannot be compiled" in (found.error or "")


def test_a_bug_of_a_decoder_ends_no_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Any exception of a decoder becomes plain bytes with a sentence; the first one is logged."""
    (tmp_path / "n.avsc").write_text('"null"')
    (tmp_path / "schemas.toml").write_text(
        '[[topic]]\nname = "t"\nvalue = {format = "avro", file = "n.avsc"}'
    )
    log = Lines()
    decoders = Decoders(DecodingSettings(schemas_file=tmp_path / "schemas.toml"), log)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("odradek.console.decoding.decoders.read_avro", fail)
    monkeypatch.setattr("odradek.console.decoding.decoders.internal_record", fail)
    for _ in range(2):
        found = decoders.decode("t", "value", b"bytes")
        assert (found.format, found.text) == ("text", "bytes")
        assert "has a bug" in (found.error or "")
    key, value = decoders.key_and_value("__consumer_offsets", b"k", None)
    assert (key.text, value.format) == ("k", "null")
    assert log.events == ["console.decoder_bug"]
    assert decoders.statistics()["bugs"] == 3


def test_json_schema_by_registry(registry: SchemaRegistry) -> None:
    """A value of a JSON schema is shown as its document."""
    registry.add(30, "JSON", '{"type": "object"}')
    found = with_registry(registry).decode("docs", "value", framed(30, b'{"a": [1]}'))
    assert (found.format, found.text, found.schema_id) == ("json-schema", '{"a": [1]}', 30)


def test_a_list_decodes_less_than_a_record(registry: SchemaRegistry) -> None:
    """A value that would cost seconds is decoded only as a whole, and a stream has a limit for all its values."""
    registry.add(31, "AVRO", '{"type": "array", "items": "null"}')
    decoders = with_registry(registry)
    bomb = framed(31, b"\xc0\xcf\x24\x00")  # 300,000 nulls
    listed = decoders.decode("any", "value", bomb)
    assert "open the record" in (listed.error or "")
    assert decoders.decode("any", "value", bomb, characters_max=1 << 21).error is None
    stream = Steps(250, "this search has decoded as much as it may")
    small = framed(31, b"\xc8\x01\x00")  # 100 nulls
    errors = [decoders.decode("any", "value", small, stream=stream).error for _ in range(3)]
    assert errors == [None, None, "this search has decoded as much as it may"]


def test_large_json_of_a_stream_is_parsed_within_its_steps() -> None:
    """Parsing a document of megabytes takes long. So after enough of them, a stream shows them as texts."""
    document = b"[" + b"0," * 100_000 + b"0]"
    stream = Steps(60_000)
    formats = [PLAIN.decode("any", "value", document, stream=stream).format for _ in range(4)]
    assert formats == ["json", "json", "text", "text"]
    wanted = PLAIN.decode("any", "value", document, "json", stream=stream)
    assert (wanted.format, "open the record" in (wanted.error or "")) == ("text", True)
    assert PLAIN.header(document, stream=stream).format == "text"
    assert PLAIN.decode("any", "value", b"[0]", stream=stream).format == "json"
    assert PLAIN.decode("any", "value", document).format == "json"


def test_a_schema_that_lacked_room_is_compiled_again(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that could not be compiled on a full disk is compiled later. A wrong schema is compiled once."""
    registry.add(34, "PROTOBUF", COMMON)
    registry.add(35, "PROTOBUF", "wrong")
    decoders = with_registry(registry)
    now, compiled = [0.0], [0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("odradek.console.decoding.decoders.time", clock)

    def count(text: str, imports: Mapping[str, str]) -> ProtobufSchema:
        compiled[0] += 1
        return compile_protobuf(text, imports)

    monkeypatch.setattr("odradek.console.decoding.decoders.compile_protobuf", count)
    record = framed(34, b"\0\x0a\x01x")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr("odradek.console.decoding.protobuf_schema.tempfile.TemporaryDirectory", full_disk)
        assert "No space left" in (decoders.decode("any", "value", record).error or "")
    assert "No space left" in (decoders.decode("any", "value", record).error or "")
    assert compiled[0] == 1
    now[0] += RETRY_SECONDS
    assert decoders.decode("any", "value", record).text == '{"text":"x"}'
    for _ in range(3):
        now[0] += 10 * RETRY_SECONDS
        assert decoders.decode("any", "value", framed(35, b"\0")).error
    assert compiled[0] == 3


def test_one_slow_schema_delays_no_other(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a schema is compiled, other schemas are compiled and used."""
    registry.add(32, "PROTOBUF", COMMON)
    registry.add(33, "AVRO", '"null"')
    decoders = with_registry(registry)
    began, may_end = threading.Event(), threading.Event()

    def compile_slowly(*_: object) -> ProtobufSchema:
        began.set()
        may_end.wait(30)
        return compile_protobuf(COMMON)

    monkeypatch.setattr("odradek.console.decoding.decoders.compile_protobuf", compile_slowly)
    slow = threading.Thread(target=decoders.decode, args=("any", "value", framed(32, b"\0")), daemon=True)
    slow.start()
    assert began.wait(30)
    found: list[str | None] = []
    quick = threading.Thread(
        target=lambda: found.append(decoders.decode("any", "value", framed(33, b"")).text), daemon=True
    )
    quick.start()
    quick.join(10)
    assert found == ["null"]
    may_end.set()
    slow.join(30)


def test_a_schema_that_is_missing_is_asked_for_once(registry: SchemaRegistry) -> None:
    """Records that name ids that do not exist cost one look-up each, and show their bytes."""
    decoders = with_registry(registry)
    before = registry.requests
    for _ in range(3):
        found = decoders.decode("any", "value", framed(404, b"x"))
        assert found.format == "hex"
        assert "does not have" in (found.error or "")
    assert registry.requests == before + 1


@pytest.mark.parametrize(
    "fault", ["hangs", "drips", "closes", "garbage", "endless", "status", "list", "deep", "redirect"]
)
def test_a_broken_registry_costs_little(registry: SchemaRegistry, fault: str) -> None:
    """A registry that hangs, drips or answers garbage costs one look-up of bounded time; then it is left alone."""
    decoders = with_registry(registry)
    with registry.failing(fault):
        began = time.monotonic()
        for schema_id in range(50, 60):
            found = decoders.decode("any", "value", framed(schema_id, b"x"))
            assert found.format == "hex"
            assert found.error
        assert time.monotonic() - began < ANSWER_SECONDS_MAX * 3
        assert decoders.statistics()["registry_asked"] <= 1 + (fault in ("redirect", "endless")) * 10


def test_a_look_up_that_hangs_delays_no_known_schema(registry: SchemaRegistry) -> None:
    """While the registry hangs for one id, another thread gets a schema that is remembered."""
    registry.add(40, "AVRO", '"string"')
    decoders = with_registry(registry)
    assert decoders.decode("any", "value", framed(40, b"\x02a")).text == '"a"'
    before = registry.requests
    with registry.failing("hangs"):
        hanging = threading.Thread(
            target=decoders.decode, args=("any", "value", framed(41, b"x")), daemon=True
        )
        hanging.start()
        deadline = time.monotonic() + 30.0
        while registry.requests == before:
            assert time.monotonic() < deadline, "nobody has asked the registry"
            time.sleep(0.01)
        assert decoders.decode("any", "value", framed(40, b"\x02b")).text == '"b"'
        assert hanging.is_alive()
        hanging.join(30)


@pytest.mark.parametrize("fault", ["endless", "refuses"])
def test_one_refused_schema_hides_no_other(registry: SchemaRegistry, fault: str) -> None:
    """A schema that is refused, or too large, is asked for once, and others are asked for nevertheless."""
    registry.add(42, "AVRO", '"string"')
    decoders = with_registry(registry)
    before = registry.requests
    with registry.failing(fault):
        assert decoders.decode("any", "value", framed(43, b"x")).error
    assert decoders.decode("any", "value", framed(42, b"\x02a")).text == '"a"'
    assert decoders.decode("any", "value", framed(43, b"x")).error
    assert registry.requests == before + 2


def test_ids_that_do_not_exist_cost_bounded_look_ups(registry: SchemaRegistry) -> None:
    """Records with many ids cost the registry a bounded number of requests, and drive out no schema."""
    registry.add(44, "AVRO", '"string"')
    decoders = with_registry(registry)
    assert decoders.decode("any", "value", framed(44, b"\x02a")).text == '"a"'
    before = registry.requests
    began = time.monotonic()
    errors = [decoders.decode("any", "value", framed(9000 + each, b"x")).error or "" for each in range(600)]
    allowed = LOOK_UPS_AT_ONCE + LOOK_UPS_PER_SECOND * (time.monotonic() - began + 1)
    assert registry.requests - before <= allowed
    assert any("a second" in each for each in errors)
    asked = registry.requests
    assert decoders.decode("any", "value", framed(44, b"\x02a")).text == '"a"'
    assert registry.requests == asked


def test_hostile_schemas_are_errors(registry: SchemaRegistry) -> None:
    """Schemas that cannot be used, circles of references, and names of files that lead out are errors."""
    registry.add(60, "AVRO", "[" * 50_000)
    registry.add(61, "PROTOBUF", "message " * 1000)
    registry.add(62, "PROTOBUF", COMMON, [("../../../etc/passwd", "evil", 1)])
    registry.add_version("evil", 1, 20)
    registry.add(20, "PROTOBUF", COMMON)
    registry.add(63, "AVRO", '"null"', [("a", "circle", 1)])
    registry.add_version("circle", 1, 63)
    registry.add(64, "XML", "<x/>")
    decoders = with_registry(registry)
    for schema_id in range(60, 65):
        found = decoders.decode("any", "value", framed(schema_id, b"\0\0"))
        assert found.error, schema_id
        assert found.schema_id == schema_id


def test_threads_share_one_look_up(registry: SchemaRegistry) -> None:
    """Many threads that need a schema ask for it once."""
    registry.add(70, "AVRO", '"string"')
    decoders = with_registry(registry)
    before = registry.requests
    texts: list[str | None] = []

    def decode() -> None:
        texts.append(decoders.decode("any", "value", framed(70, b"\x04ab")).text)

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ['"ab"'] * 8
    assert registry.requests == before + 1


def test_schemas_of_files(tmp_path: Path) -> None:
    """A file gives topics their schemas, by name or by pattern."""
    (tmp_path / "point.avsc").write_text(
        '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}'
    )
    (tmp_path / "order.proto").write_text(
        'syntax = "proto3"; package p; message A { int32 a = 1; } message B { int32 b = 1; }'
    )
    (tmp_path / "schemas.toml").write_text(
        """
        [[topic]]
        name = "points"
        key = {format = "hex"}
        value = {format = "avro", file = "point.avsc"}
        [[topic]]
        pattern = "orders-.*"
        value = {format = "protobuf", file = "order.proto", message = "p.B"}
        """
    )
    decoders = Decoders(DecodingSettings(schemas_file=tmp_path / "schemas.toml"))
    key, value = decoders.key_and_value("points", b"k", b"\x0a")
    assert (key.format, key.text, value.format, value.text) == ("hex", "6b", "avro", '{"x":5}')
    assert decoders.decode("orders-1", "value", b"\x08\x05").text == '{"b":5}'
    assert decoders.decode("orders-1", "key", b"k").format == "text"
    assert decoders.decode("points", "value", b"\xff\xff").error
    assert decoders.decode("points", "value", b"\x0a", "text").format == "text"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[topic]]\n", "a name or a pattern"),
        ('[[topic]]\nname = "a"\nvalue = {format = "xml"}\n', "the format is one of"),
        ('[[topic]]\nname = "a"\nvalue = {format = "avro"}\n', "needs a file"),
        ('[[topic]]\nname = "a"\nvalue = {format = "avro", file = "none.avsc"}\n', "none.avsc"),
        ('[[topic]]\npattern = "("\n', "is wrong"),
        ('[[topic]]\nname = "a"\nvlaue = {}\n', "vlaue"),
        ("[[topic", "cannot be read"),
    ],
)
def test_a_wrong_file_of_schemas_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """The console does not start with a wrong file; the error names the mistake."""
    (tmp_path / "schemas.toml").write_text(text)
    with pytest.raises(ValueError, match=expected):
        Decoders(DecodingSettings(schemas_file=tmp_path / "schemas.toml"))


def test_fastavro_is_only_an_oracle() -> None:
    """The console does not import fastavro: a value could end its process."""
    assert fastavro.__name__ == "fastavro"
    sources = Path(__file__).resolve().parents[3] / "odradek" / "console"
    assert not [path for path in sources.rglob("*.py") if "import fastavro" in path.read_text()]
