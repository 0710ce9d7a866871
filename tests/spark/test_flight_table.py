"""The flights are read from their package's file, in any environment that has the package and pandas."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="pandas is not installed (the extra spark)")

from odradek.spark.pipelines import flight_table as module
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.flight_table import PACKAGE, flight_table


def test_the_flights_are_read_where_pkg_resources_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of Python 3.12 or newer has no `pkg_resources`, which the package imports."""
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    flights = flight_table()
    assert len(flights) == 336_776
    assert PACKAGE not in sys.modules


def test_a_missing_package_is_named_in_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install, and says it only where that helps."""
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(Failed, match=f"pip install {PACKAGE}$"):
        flight_table()


def test_missing_pandas_is_named_in_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may be there, and pandas missing: then pandas is what to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Failed, match=r"read with pandas .*: pip install 'pandas"):
        flight_table()


def test_a_package_without_its_table_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package of that name that holds no flights is named with its place."""
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    with pytest.raises(Failed, match=f"at {tmp_path} has no file"):
        flight_table()
