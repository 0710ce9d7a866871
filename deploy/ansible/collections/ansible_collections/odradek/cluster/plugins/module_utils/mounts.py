"""Mount points, and whether their disks answer. The first comes from the kernel's table of mounts, because a
dead disk does not answer.
"""

from __future__ import annotations

import os
import re

TABLE = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_mounted(path: str, table: str = TABLE) -> bool:
    """True if a file system is mounted at this path, dead or alive (os.path.ismount says no of a dead one)."""
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        points = [line.split()[4] for line in lines]
    wanted = os.path.abspath(path)
    return any(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), point) == wanted for point in points)


def trouble_of(path: str, file: str) -> str | None:
    """Return the error with which the disk at this mount point answers, None if it is sound.

    A file that is there is opened, since a file system may know names and sizes after the death of its disk.
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
