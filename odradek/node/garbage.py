"""Settings of Python's garbage collector for a node. SHELL: there is one collector for the whole process.

A full collection stops the process and visits all objects except frozen ones: about 100 ms for 400,000 objects. Most
objects of a node live for days. So objects that survive a full collection are frozen, and the next one visits only
newer objects. A frozen object is still freed when its last reference goes. Only cycles of frozen objects stay, so
each `THAW_EVERY`th full collection visits all objects.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

STARTING_THRESHOLD = 100_000
"""The collector's first threshold during a start, which makes a million lasting objects and little garbage. With
CPython's own threshold, collections take a sixth of the CPU time of a start with 10,000 partitions.
"""
SERVING_THRESHOLDS = (700, 10, 100)
"""The three thresholds of CPython, except that the last one is 100 instead of 10. A long request makes 200,000 objects.
A full collection during the request would visit all these objects.
"""
THAW_EVERY = 100


class Collections:
    """Sets Python's garbage collector for the start and the service of a node."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full = 0
        """The number of full collections since the node began to serve."""

    def begin_start(self) -> None:
        """Set the collector for the start: collect rarely, because a start makes little garbage."""
        gc.set_threshold(STARTING_THRESHOLD)

    def begin_service(self) -> None:
        """Set the collector for service, and freeze the objects of the start, so that later collections leave them
        out.
        """
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
