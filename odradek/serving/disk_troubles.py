"""The list of disks that take no records now, full or hung, as a broker reports it to the controllers. PURE.

KRaft's messages have no field for such a directory: a directory in `offline_log_dirs` is gone for good, a cordoned
one still leads. So a broker keeps a list in a configuration of its own BROKER resource (`TROUBLED_LOG_DIRS`). Every
controller stores it, and Kafka's does nothing else. Ours lets the replicas on a listed directory lead only where no
other replica can. Leaderships move in the decision that stores the list. They may come back once the list has lost
the directory.

An entry is `ID:full:SINCE:PATH`, or has `hung` or `demoted` for `full`. ID is the directory's id as Kafka writes it,
SINCE is in milliseconds of the wall clock. PATH has `%2C` for a comma and `%25` for a per cent sign. Other programs
may have written the list, so malformed entries are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

RETIRING_LOG_DIRS = "odradek.retiring.log.dirs"
"""The directories of a broker that `odradek disk retire` has cordoned, separated by commas. It undoes only these."""
RELEASED_LOG_DIRS = "odradek.released.log.dirs"
"""The directories that a broker shall let go of, separated by commas, as soon as they are empty."""
DIRECTORY_LISTS = frozenset((RETIRING_LOG_DIRS, RELEASED_LOG_DIRS))
"""Lists of paths, to which commands append and from which they subtract (KIP-339)."""
RATE_BEFORE = "odradek.copies.rate.before"
"""The bytes per second of copies between directories before a command set its `--throttle`; `none` for no limit.

A dynamic configuration of one broker, there while such a command runs, or after it was killed.
"""
TROUBLED_LOG_DIRS = "odradek.troubled.log.dirs"
DEMOTED_LOG_DIRS = "odradek.demoted.log.dirs"
"""A dynamic configuration of one broker: paths of its directories whose replicas should not lead, chosen by an operator."""


class Trouble(Enum):
    """The reason for which a directory takes no records now."""

    HUNG = "hung"
    FULL = "full"
    DEMOTED = "demoted"
    """The broker has no trouble with the directory: an operator wants replicas elsewhere to lead."""


@attrs.frozen
class TroubledDirectory:
    """One directory of a broker, and its trouble. `since_ms` is by the broker's wall clock."""

    directory_id: bytes
    trouble: Trouble
    since_ms: int
    path: str


def troubles_text(troubled: Iterable[TroubledDirectory]) -> str:
    """Write the value of the configuration; empty for none."""
    return ",".join(
        f"{uuid_to_text(each.directory_id)}:{each.trouble.value}:{each.since_ms}:{_escaped(each.path)}"
        for each in troubled
    )


def parse_troubles(text: str) -> list[TroubledDirectory]:
    """Parse a text that `troubles_text` has written; malformed entries are left out."""
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
    """List the ids in the configuration of one broker."""
    text = values.get(TROUBLED_LOG_DIRS, "")
    return tuple(each.directory_id for each in parse_troubles(text)) if text else ()


def demoted_text(paths: Iterable[str]) -> str:
    """Write the value of `DEMOTED_LOG_DIRS`; empty for none."""
    return ",".join(map(_escaped, paths))


def demoted_paths(text: str) -> list[str]:
    """Parse the paths of a text that `demoted_text` has written."""
    return [_unescaped(each.strip()) for each in text.split(",") if each.strip()]


def _escaped(path: str) -> str:
    """Escape a path; bytes that are no text become question marks."""
    return path.encode(errors="replace").decode().replace("%", "%25").replace(",", "%2C")


def _unescaped(text: str) -> str:
    return text.replace("%2C", ",").replace("%25", "%")
