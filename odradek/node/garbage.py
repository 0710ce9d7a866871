"""The schedule of Python's garbage collector. SHELL: there is one collector for the whole process.

A full collection stops everything, and looks at all objects but the frozen ones: about 100 ms for 400,000 of them.
Most objects of a node live for days. So those that survive a full collection are frozen, and the next collection
looks only at objects made since. A frozen object is still freed when its last reference goes. Only cycles of frozen
objects stay, so each `THAW_EVERY`th full collection looks at everything.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

STARTING_THRESHOLD = 100_000
"""A start makes a million objects that stay, and hardly any garbage. With the usual threshold, collections look at
them again and again: a sixth of the CPU time of a start with 10,000 partitions."""
SERVING_THRESHOLDS = (700, 10, 100)
"""CPython's thresholds, except for the last, which is 10 in CPython. A long request makes 200,000 objects, and a
full collection in the middle of it would visit all of them."""
THAW_EVERY = 100


class Collections:
    """Python's collector, set for a node."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full = 0
        """Full collections since the node began to serve."""

    def begin_start(self) -> None:
        """Collect rarely while the node starts, because that makes little garbage."""
        gc.set_threshold(STARTING_THRESHOLD)

    def begin_service(self) -> None:
        """Freeze the objects that exist after the start, so later collections leave them out."""
        gc.set_threshold(*SERVING_THRESHOLDS)
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, facts: Mapping[str, int]) -> None:
        if facts["generation"] != 2:
            return
        if phase == "stop":
            gc.freeze()
            return
        self.full += 1
        if self.full % THAW_EVERY == 0:
            gc.unfreeze()


__all__ = ["SERVING_THRESHOLDS", "STARTING_THRESHOLD", "THAW_EVERY", "Collections"]
