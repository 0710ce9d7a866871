"""The command `odradek spark quiet`: prints the folder with settings that make Spark log only errors (docs/spark.md).
SHELL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Print the path of the folder, and return the exit status."""
    argparse.ArgumentParser(
        prog="odradek spark quiet",
        description="Print the folder of settings that make Spark print only errors, for SPARK_CONF_DIR.",
    ).parse_args(words)
    print(Path(__file__).parent / "conf")
    return 0


if __name__ == "__main__":
    sys.exit(main())
