"""This process's open descriptors."""

from __future__ import annotations

import os
from pathlib import Path


def descriptors_below(path: Path) -> int:
    """The number of files below `path` that this process has open.

    Other descriptors come and go beside a test, such as sockets of an earlier one that the garbage collector closes.
    """
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(link).startswith(f"{os.path.realpath(path)}/") for link in links)
