"""A program that copies a topic by consume-transform-produce, each record exactly once, by one of several clients.

It ends with 0 when the group's committed offsets reach the total. It ends with 3 after an error that only a successor
of the same `transactional.id` gets over. Each line that it prints is an event and a number or a reason.
"""

from __future__ import annotations

import sys
import time

from tests.cluster.copiers.api import Abortable, Copier, Fatal, say
from tests.cluster.copiers.clients import copier_of

NEEDS_SUCCESSOR = 3


def transform(value: bytes) -> bytes:
    """The copy of one record's value."""
    return b"copy of " + value


def copy(copier: Copier, total: int) -> None:
    """Go on until all is copied. Raises `Fatal`."""
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
    """Copy until `total` records are done; the exit status."""
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
