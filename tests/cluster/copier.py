"""Copy a topic by consume-transform-produce with one of several clients, each record exactly once.

The program ends with 0 when the group's committed offsets reach the total. It ends with 3 after a fatal producer error:
then a new producer with the same `transactional.id` must continue. Each printed line is an event with a number or a
reason.
"""

from __future__ import annotations

import sys
import time

from tests.cluster.copiers.api import Abortable, Copier, Fatal, say
from tests.cluster.copiers.clients import copier_of

NEEDS_SUCCESSOR = 3


def transform(value: bytes) -> bytes:
    """Return the value that the copy of a record must have."""
    return b"copy of " + value


def copy(copier: Copier, total: int) -> None:
    """Copy in transactions until the group has committed `total` records. Raises `Fatal`."""
    while True:
        started = time.monotonic()
        records = copier.poll()
        count = len(records)
        if not records:
            if copier.committed() >= total:
                return
            continue
        try:
            copier.begin()
            for partition, _, value in records:
                copier.write(partition, transform(value))
            copier.send_offsets({partition: offset + 1 for partition, offset, _ in records})
            copier.commit()
            say("committed", f"{count} {time.monotonic() - started:.3f}")
        except Abortable as error:
            say("aborting", error)
            copier.abort()
            say("aborted", f"{count} {time.monotonic() - started:.3f}")


def main(client: str, bootstrap: str, source: str, target: str, name: str, total: str) -> int:
    """Copy until `total` records are committed; return the exit status."""
    try:
        copier = copier_of(client)(bootstrap, source, target, name)
        say("ready", name)
        copier.subscribe()
        copy(copier, int(total))
    except (Fatal, Abortable) as error:
        say("fatal", error)
        return NEEDS_SUCCESSOR
    say("done", total)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
