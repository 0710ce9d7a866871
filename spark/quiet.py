"""The folder of settings with which Spark prints errors alone: `export SPARK_CONF_DIR="$(python -m odradek.spark.quiet)"`. SHELL."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["main"]


def main() -> int:
    """Print the folder."""
    print(Path(__file__).resolve().parent / "conf")
    return 0


if __name__ == "__main__":
    sys.exit(main())
