"""The list of full, hung or demoted disks as text in a broker's own configuration, by which it reports them to
the controllers. PURE.

KRaft's messages have no field for such a directory. A directory in `offline_log_dirs` is gone for good, and a
cordoned directory still has leaders. So a broker keeps a list in a configuration of its own BROKER resource
(`TROUBLED_LOG_DIRS`). Every controller stores this configuration, and Kafka's controller does nothing else
with it. Our controller lets replicas on a listed directory lead only if no other replica can. Leaderships
move in the decision that stores the list. They may return once the directory has left the list.

An entry is `ID:full:SINCE:PATH`, or has `hung` or `demoted` instead of `full`. ID is the directory's id as Kafka
writes it, SINCE is in milliseconds of the wall clock. PATH has `%2C` for a comma and `%25` for a per cent sign. Other
programs may have written the list, so malformed entries are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

RETIRING_LOG_DIRS = "odradek.retiring.log.dirs"
"""A broker configuration: the paths that `odradek disk retire` has cordoned, separated by commas. The command
removes only the cordons of these paths.
"""
RELEASED_LOG_DIRS = "odradek.released.log.dirs"
"""A broker configuration: paths that the broker must stop using as soon as they are empty, separated by commas."""
DIRECTORY_LISTS = frozenset((RETIRING_LOG_DIRS, RELEASED_LOG_DIRS))
"""Configurations that are lists of paths: commands append to them and subtract from them (KIP-339)."""
RATE_BEFORE = "odradek.copies.rate.before"
"""A dynamic configuration of one broker: its rate of copies between directories (bytes per second) before a
command set its `--throttle`. The value `none` means no limit.

The configuration exists while such a command runs, and after such a command was killed.
"""
TROUBLED_LOG_DIRS = "odradek.troubled.log.dirs"
DEMOTED_LOG_DIRS = "odradek.demoted.log.dirs"
"""A dynamic configuration of one broker: paths of directories whose replicas should not lead, as an operator has
decided.
"""


class Trouble(Enum):
    """The reason for which replicas in a directory should not lead now."""

    HUNG = "hung"
    FULL = "full"
    DEMOTED = "demoted"
    """An operator wants replicas in other directories to lead. The directory itself works."""


@attrs.frozen
class TroubledDirectory:
    """A directory whose replicas should not lead, and the reason. `since_ms` is in milliseconds of the broker's wall
    clock.
    """

    directory_id: bytes
    trouble: Trouble
    since_ms: int
    path: str


def troubles_text(troubled: Iterable[TroubledDirectory]) -> str:
    """Format these directories as the value of the configuration; empty for none."""
    return ",".join(
        f"{uuid_to_text(each.directory_id)}:{each.trouble.value}:{each.since_ms}:{_escaped(each.path)}"
        for each in troubled
    )


def parse_troubles(text: str) -> list[TroubledDirectory]:
    """Parse the value of the configuration, as `troubles_text` writes it; malformed entries are skipped."""
    found = []
    for entry in text.split(","):
        parts = entry.strip().split(":", 3)
        try:
            directory, kind, since, path = parts
            found.append(
                TroubledDirectory(uuid_from_text(directory), Trouble(kind), int(since[:20]), _unescaped(path))
            )
        except ValueError:
            continue
    return found


def troubled_directories(values: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the ids of the troubled directories in a broker's configuration values."""
    text = values.get(TROUBLED_LOG_DIRS, "")
    return tuple(each.directory_id for each in parse_troubles(text)) if text else ()


def demoted_text(paths: Iterable[str]) -> str:
    """Format the value of `DEMOTED_LOG_DIRS`; empty for none."""
    return ",".join(map(_escaped, paths))


def demoted_paths(text: str) -> list[str]:
    """Parse the value of `DEMOTED_LOG_DIRS`, as `demoted_text` writes it."""
    return [_unescaped(each.strip()) for each in text.split(",") if each.strip()]


def _escaped(path: str) -> str:
    """Escape a path for the list; bytes that are not text become question marks."""
    return path.encode(errors="replace").decode().replace("%", "%25").replace(",", "%2C")


def _unescaped(text: str) -> str:
    return text.replace("%2C", ",").replace("%25", "%")
