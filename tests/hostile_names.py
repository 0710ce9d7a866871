"""A user's files with names that top-level modules of Odradek had or might have. Importing one ends the process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["lay_out"]

TRAP = 'raise SystemExit(f"{__name__} is a module of the user\'s, and was imported")\n'
MODULES = (
    "wire",
    "spark",
    "data_plane",
    "metadata_quorum",
    "odradek_x",
    "client",
    "node",
    "serving",
    "security",
)
PACKAGES = ("sim", "jepsen_tests", "bench", "testkit", "env", "tests")


def lay_out(folder: Path) -> None:
    """Write all these files into a folder."""
    for name in MODULES:
        (folder / f"{name}.py").write_text(TRAP)
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(TRAP)
