"""The corpus, whole: importing this module enters the cases of all APIs, one file each in `cases/`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from odradek.wire.api import ApiKey
from tests.conformance.broken_frames import enter
from tests.conformance.talk import CORPUS, hold

APIS = tuple(sorted(path.stem for path in (Path(__file__).parent / "cases").glob("[a-z]*.py")))
"""In the order of conversation."""

for _api in APIS:
    import_module(f"tests.conformance.cases.{_api}")
    enter(ApiKey[_api.upper()])


def cases_of(api: str) -> list[str]:
    """The names of the cases that are about one API."""
    return [name for name in CORPUS if name.partition(" ")[0] == api]


def key_of(api: str) -> ApiKey:
    """The API key of a file of cases."""
    return ApiKey[api.upper()]


__all__ = ["APIS", "CORPUS", "cases_of", "hold", "key_of"]
