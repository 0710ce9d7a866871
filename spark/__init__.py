"""Odradek and Spark: what turns record batches into Spark's rows; see README.md."""

from __future__ import annotations

import sys

if __name__ == "spark" and sys.argv[0] == "-m":
    # In a checkout, `python -m spark NAME` and `python -m spark.quiet` go on to work.
    words = sys.orig_argv[sys.orig_argv.index("-m") + 1 :]
    name = words[0].removeprefix("spark").removeprefix(".").replace("_", "-") or "".join(words[1:2])
    said = "mirror" if name == "mirror" else f"spark {name}".rstrip()
    print(f"python -m {words[0]} is called `odradek {said}` now", file=sys.stderr)
elif __name__ != "odradek.spark":
    # A second copy would have classes of its own: its errors would pass by an `except` that names those of the first.
    raise ImportError(f"{__name__!r} is a folder of Odradek's sources: import odradek.spark")
