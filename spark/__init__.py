"""The Spark side of Odradek: a data source, a sink, and jobs."""

from __future__ import annotations

import sys

if __name__ == "spark" and sys.argv[0] == "-m":
    # In a checkout, the folder may be run directly: `python -m spark NAME` and `python -m spark.quiet` still work.
    print(
        "`python -m spark` is now called `odradek spark`, and its job `mirror` is now `odradek mirror`",
        file=sys.stderr,
    )
elif __name__ != "odradek.spark":
    # If the package were imported under two names, each class would exist twice, and `except` would miss the errors
    # of the other copy.
    raise ImportError(f"{__name__!r} is only a folder of Odradek's sources: write `import odradek.spark`")
