"""The console over Apache Kafka: every view answers as the description says, though Kafka reports less."""

from __future__ import annotations

from collections.abc import Iterator

import jsonschema
import pytest

from odradek.console.settings import ConsoleSettings
from testkit.processes import ServerProcess
from tests.console.application.console_here import Console, console_for

pytestmark = pytest.mark.java
ONLY_ODRADEK = {"/api/history": 501}
"""Views that Kafka's controllers cannot answer, with the status that says so."""


@pytest.fixture(scope="module")
def console(apache_kafka: ServerProcess) -> Iterator[Console]:
    with console_for(ConsoleSettings(bootstrap=apache_kafka.bootstrap)) as running:
        yield running


def test_every_view_answers(console: Console) -> None:
    """The shapes are the same; what Kafka does not report is null."""
    browser = console.browser()
    description = browser.ok("/api/openapi.json")
    assert isinstance(description, dict)
    session = browser.ok("/api/session")
    assert isinstance(session, dict)
    assert session["is_kafka"] is True
    seen = {}
    for path, operations in description["paths"].items():
        operation = operations.get("get")
        if operation is None or any(each["required"] for each in operation["parameters"]):
            continue
        content = operation["responses"]["200"]["content"]
        if "application/json" in content:
            status, document = browser.get(path)
            seen[path] = status
            if status == 200:
                schema = {**content["application/json"]["schema"], "components": description["components"]}
                jsonschema.validate(document, schema)
    assert {path: status for path, status in seen.items() if status != 200} == ONLY_ODRADEK
