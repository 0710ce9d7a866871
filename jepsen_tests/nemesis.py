"""Injects the faults of a schedule into a cluster, in the caller's thread, and undoes each of them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence

import attrs

from jepsen_tests.real_cluster import Cluster
from jepsen_tests.schedule import PlannedFault, links


@attrs.define
class Nemesis:
    """Injects faults into a cluster. `leader` returns the node that leads the most partitions, or None. `tell` is
    called with each fault, to record it.
    """

    cluster: Cluster
    leader: Callable[[], int | None]
    tell: Callable[[str, str], None]
    """Called with (name, detail) of each fault."""
    done: list[str] = attrs.field(factory=list)
    _cuts: dict[PlannedFault, list[tuple[int, int]]] = attrs.field(factory=dict)
    _victims: dict[PlannedFault, list[int]] = attrs.field(factory=dict)

    def run(self, faults: Sequence[PlannedFault], started: float) -> None:
        """Begin and end each fault at its time, in seconds after `started` (monotonic clock). At the end, undo all
        faults.
        """
        steps = [(fault.at, number, True) for number, fault in enumerate(faults)]
        steps += [(fault.end, number, False) for number, fault in enumerate(faults)]
        heapq.heapify(steps)
        while steps:
            at, number, begins = heapq.heappop(steps)
            time.sleep(max(0.0, started + at - time.monotonic()))
            if begins:
                self._begin(faults[number])
            else:
                self._end(faults[number])
        self.heal()

    def heal(self) -> None:
        """Undo all remaining faults: restore links, resume paused nodes, and start dead nodes."""
        for cuts in self._cuts.values():
            for source, target in cuts:
                self.cluster.network.unblock(source, target)
        self._cuts.clear()
        self._victims.clear()
        for number in self.cluster.nodes:
            self.cluster.resume(number)
            self.cluster.start(number)

    def _begin(self, fault: PlannedFault) -> None:
        if fault.kind == "partition":
            victim = self._choose(fault)[0]
            self._cuts[fault] = links(fault.target, victim, list(self.cluster.nodes), fault.choice)
            for source, target in self._cuts[fault]:
                self.cluster.network.block(source, target)
            cut = " ".join(f"{source}->{target}" for source, target in self._cuts[fault])
            self._say(fault, f"cut {cut}")
            return
        self._victims[fault] = self._choose(fault)
        for victim in self._victims[fault]:
            if fault.kind == "kill":
                self.cluster.kill(victim)
            else:
                self.cluster.pause(victim)
        self._say(fault, " ".join(f"node {victim}" for victim in self._victims[fault]))

    def _end(self, fault: PlannedFault) -> None:
        if fault.kind == "partition":
            for source, target in self._cuts.pop(fault):
                self.cluster.network.unblock(source, target)
        for victim in self._victims.pop(fault, ()):
            if fault.kind == "kill":
                self.cluster.start(victim)
            else:
                self.cluster.resume(victim)
        self.tell(f"{fault.kind} ends", fault.target)

    def _say(self, fault: PlannedFault, detail: str) -> None:
        self.done.append(fault.kind)
        self.tell(f"{fault.kind} {fault.target}", detail)

    def _choose(self, fault: PlannedFault) -> list[int]:
        """Choose the nodes for a fault. If the leader is unknown, choose a random node instead."""
        numbers = list(self.cluster.nodes)
        start = int(fault.choice * len(numbers))
        turned = numbers[start:] + numbers[:start]
        if fault.target == "all" and fault.kind != "partition":
            return numbers
        if fault.target == "majority":
            return turned[: len(numbers) // 2 + 1]
        named = None
        if fault.target.endswith("leader"):
            named = self.leader()
        elif fault.target.endswith("controller"):
            named = self.cluster.active_controller()
        return [named] if named in self.cluster.nodes else turned[:1]
