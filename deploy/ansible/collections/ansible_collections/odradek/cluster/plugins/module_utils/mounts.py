"""Checks whether a path is a mount point, and whether its disk works. Mounts are read from the kernel's table,
because a dead disk does not answer.
"""

from __future__ import annotations

import os
import re

TABLE = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_mounted(path: str, table: str = TABLE) -> bool:
    """True if a file system is mounted at this path, even if its disk is dead. (os.path.ismount returns false then.)"""
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        points = [line.split()[4] for line in lines]
    wanted = os.path.abspath(path)
    return any(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), point) == wanted for point in points)


def trouble_of(path: str, file: str) -> str | None:
    """Return the error of the disk at this mount point; None if the disk works.

    If `file` exists, it is read, because a file system may still know names and sizes when its disk is dead.
    """
    try:
        os.listdir(path)
        with open(os.path.join(path, file), "rb") as opened:
            opened.read(1)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(path, os.W_OK) else "it is read-only"
