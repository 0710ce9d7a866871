"""Every message and record is compared with Apache Kafka's own classes, the only reference for records that kio lacks."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from odradek.wire import codec
from odradek.wire.schema.generate import snake_case
from odradek.wire.schema.table import FieldFact, MessageFact, messages
from odradek.wire.structure import Structure
from testkit.kafka_server import SHORT_LIVED
from tests.wire.message_values import SHAPES, all_versions, contains, generated

PROGRAM = Path(__file__).parent / "RewriteMessages.java"
FACTS: dict[str, MessageFact] = {fact.name: fact for fact in messages()}


def as_kafka_json(value: Any, fields: tuple[FieldFact, ...], version: int) -> dict[str, Any]:
    """Return a structure as Kafka's JSON converters write it: with Kafka's names, and without default tagged fields."""
    default = type(value)()
    result = {}
    for field in fields:
        name = snake_case(field.name)
        held = getattr(value, name)
        is_tagged = contains(field.tagged, version)
        if contains(field.versions, version) and not (is_tagged and held == getattr(default, name)):
            result[field.name[0].lower() + field.name[1:]] = as_json(held, field, version)
    return result


def as_json(value: Any, field: FieldFact, version: int) -> Any:
    """Return a field's value as JSON."""
    if isinstance(value, list):
        return [as_json(element, attrs.evolve(field, is_array=False), version) for element in value]
    if isinstance(value, Structure):
        return as_kafka_json(value, field.fields, version)
    if field.type == "records" and value is not None:
        return ""  # Kafka's converters leave out batches
    if isinstance(value, bytes):
        if field.type == "uuid":
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        return base64.b64encode(value).decode()
    return value


@pytest.mark.java
def test_every_message_is_what_apache_kafka_reads_and_writes(kafka_jars: Path) -> None:
    """Kafka reads our bytes completely, understands each field as we do, and writes the same bytes."""
    cases = [
        (cls, version, message, codec.encode(message, version))
        for cls, version in all_versions()
        for message in generated(cls, version, SHAPES, foreign=True)
    ]
    asked = "".join(f"{cls.__name__} {version} {data.hex()}\n" for cls, version, _, data in cases)
    result = subprocess.run(
        ["java", *SHORT_LIVED, "-cp", f"{kafka_jars}/*", str(PROGRAM)],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = result.stdout.splitlines()
    assert len(answers) == len(cases)
    for (cls, version, message, data), answer in zip(cases, answers, strict=True):
        written, remaining, understood = answer.split(" ", 2)
        assert written == data.hex(), (cls, version, answer[:300])
        assert remaining == "0", (cls, version)
        expected = as_kafka_json(message, FACTS[cls.__name__].fields, version)
        assert json.loads(understood) == expected, (cls, version)
