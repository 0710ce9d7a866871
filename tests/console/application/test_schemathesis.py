"""Schemathesis finds nothing: hostile and strange requests to the whole API get what its description says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from odradek.console.settings import ConsoleSettings
from tests.console.application.console_here import Console, console_for
from tests.node_process import RunningNode

EXAMPLES = 20
RULES_BETWEEN_WORDS = ("/api/download", "/api/access/check")
"""Addresses with rules between two words, which a description cannot express: an offset needs a partition."""


@pytest.fixture(scope="module")
def console(node: RunningNode) -> Iterator[Console]:
    with console_for(ConsoleSettings(bootstrap=node.bootstrap)) as running:
        yield running


@pytest.fixture(scope="module")
def description(console: Console) -> BaseSchema:
    """Return the API's description, without the endless streams."""
    found = schemathesis.openapi.from_url(f"http://127.0.0.1:{console.port}/api/openapi.json")

    def is_stream(context: schemathesis.HookContext) -> bool:
        ok = context.operation.definition.raw["responses"]["200"].get("content", {})
        return "text/event-stream" in ok

    return found.exclude(is_stream)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_api_keeps_to_its_description(description: BaseSchema, mode: GenerationMode) -> None:
    """Each answer has a status, a type and a shape of the description, and what it forbids is refused."""
    seen = 0
    for found in description.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.query and not operation.path_parameters:
            continue

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Case) -> None:
            skipped = [positive_data_acceptance] if case.operation.path in RULES_BETWEEN_WORDS else []
            response = case.call()
            # A word that is too long may also be too long for a head, which is a right answer.
            if response.status_code != 431:
                case.validate_response(response, excluded_checks=skipped)

        check()
        seen += 1
    assert seen >= (4 if mode is GenerationMode.POSITIVE else 0)
