"""The recorded answers have the shapes of the real API, so tests of pages over them say something about it."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from odradek.console.openapi import description
from odradek.console.routes import route_of
from tests.console.browser.recorded_answers import World, empty_world, large_world, small_world


@pytest.mark.parametrize("make", [small_world, empty_world, large_world])
def test_recorded_answers_fit_the_description(make: type[World]) -> None:
    """Each recorded answer fits the schema that `/api/openapi.json` has for its address."""
    document = json.loads(description())
    faults = []
    for address, answer in make().items():
        found = route_of(tuple(address[1:].split("/")))
        assert found is not None, address
        content = document["paths"][found[0].path]["get"]["responses"]["200"]["content"]
        schema = {**document, **content["application/json"]["schema"]}
        for fault in Draft202012Validator(schema).iter_errors(answer):
            faults.append(f"{address} {fault.json_path}: {fault.message[:200]}")
    assert faults == []
