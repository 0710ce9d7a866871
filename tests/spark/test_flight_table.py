"""The flights are read from the file of their package, in any environment with this package and pandas."""

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
    """The flights can be read without `pkg_resources`. The package imports it, but Python 3.12 and newer lack it."""
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    flights = flight_table()
    assert len(flights) == 336_776
    assert PACKAGE not in sys.modules


def test_a_missing_package_is_named_in_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the package is missing, the sentence says what to install."""
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(Failed, match=f"pip install {PACKAGE}$"):
        flight_table()


def test_missing_pandas_is_named_in_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """If pandas is missing, the sentence says to install pandas."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Failed, match=r"read with pandas .*: pip install 'pandas"):
        flight_table()


def test_a_package_without_its_table_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If a package of this name has no flights, the sentence shows its location."""
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    with pytest.raises(Failed, match=f"at {tmp_path} has no file"):
        flight_table()
