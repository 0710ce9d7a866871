"""Odradek and Spark: turns record batches into Spark's rows."""

from __future__ import annotations

import sys

if __name__ == "spark" and sys.argv[0] == "-m":
    # In a checkout, `python -m spark NAME` and `python -m spark.quiet` still work.
    print(
        "`python -m spark` is now called `odradek spark`, and its job `mirror` is now `odradek mirror`",
        file=sys.stderr,
    )
elif __name__ != "odradek.spark":
    # If it were imported twice, the package would have two of each class, and `except` would miss the other
    # copy's errors.
    raise ImportError(f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.spark`")
