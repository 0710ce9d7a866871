"""Python's garbage collector in a running node: long-lived objects are frozen, and later cycles are still freed."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, weakref
from odradek.node.garbage import THAW_EVERY, Collections

class Circle:
    def __init__(self):
        self.me = self

def collect():
    gc.collect()
    return gc.get_freeze_count()

collections = Collections()
collections.begin_start()
collections.begin_service()
kept, gone_soon = Circle(), Circle()
seen, soon = weakref.ref(kept), weakref.ref(gone_soon)
del gone_soon
before = gc.get_freeze_count()
assert collect() > before, "what survives is not frozen"
assert soon() is None, "a circle that came since the last full collection stays"
del kept
collect()
assert seen() is not None, "frozen objects are looked at"
for _ in range(THAW_EVERY):
    collect()
assert seen() is None, "a circle among the frozen stays for good"
assert gc.get_freeze_count() > before
print("held", collections.full)
"""


def test_what_survives_a_full_collection_is_frozen_and_thawed_now_and_then() -> None:
    """A full collection checks only objects made since the last full collection. Every hundredth one checks all
    objects."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "held 102"), ran.stderr
