"""The schedule of faults of a run, with times and durations, drawn from a seed before the run begins. PURE.

Targets are words (`one`, `leader`, `controller`, `majority`, `all`). The nemesis chooses the nodes when the
fault begins. The fault model permits to kill or pause any number of nodes at once. A killed node restarts
with its disk and page cache. Links may be cut in any combination, in one or both directions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

TARGETS: dict[str, tuple[str, ...]] = {
    "kill": ("one", "one", "leader", "leader", "controller", "controller", "majority", "all"),
    "pause": ("one", "leader", "leader", "controller", "majority"),
    "partition": ("isolate", "isolate-leader", "isolate-controller", "one-way", "bridge", "all"),
}
"""The targets that may be drawn for each kind of fault. A target that occurs twice is drawn twice as often. The targets
of network partitions: `isolate` cuts all links of a node in both directions, `one-way` in one direction. `bridge` cuts
the link between two nodes, so that the third node still reaches both. `all` cuts all links.
"""
KINDS = tuple(TARGETS)
INTERVAL_SECONDS = 8.0


@attrs.frozen
class PlannedFault:
    """A fault that begins `at` seconds after the start and ends after `lasts` seconds. The nemesis uses `choice` (0 to
    1) in place of random numbers.
    """

    at: float
    lasts: float
    kind: str
    target: str
    choice: float

    @property
    def end(self) -> float:
        return self.at + self.lasts


def plan(
    seed: int,
    seconds: float,
    kinds: Sequence[str],
    interval: float = INTERVAL_SECONDS,
    targets: Sequence[str] = (),
) -> list[PlannedFault]:
    """Plan faults for `seconds`, after which all have ended. Faults of one kind follow each other; different kinds
    overlap.

    `targets` are the only targets to use (empty: all). Raises `ValueError` for an unknown kind, or for a kind without
    any of these targets.
    """
    found = []
    for kind in kinds:
        if kind not in TARGETS:
            raise ValueError(f"unknown kind of fault {kind!r}; the kinds are {', '.join(KINDS)}")
        drawn = [target for target in TARGETS[kind] if not targets or target in targets]
        if not drawn:
            raise ValueError(
                f"the fault {kind} has none of the targets {', '.join(targets)}; it has {', '.join(TARGETS[kind])}"
            )
        generator = random.Random(f"{seed} {kind}")
        at = interval * generator.uniform(0.3, 0.8)
        while at + interval * 0.25 < seconds:
            lasts = min(interval * generator.uniform(0.1, 1.0), seconds - at)
            found.append(PlannedFault(at, lasts, kind, generator.choice(drawn), generator.random()))
            at += lasts + interval * generator.uniform(0.2, 0.8)
    return sorted(found, key=lambda fault: fault.at)


def plan_kills(seed: int, count: int, interval: float = INTERVAL_SECONDS) -> list[PlannedFault]:
    """Plan `count` kills of one node each, which clients must survive. Each begins after the previous one has ended."""
    generator = random.Random(f"{seed} kills")
    found = []
    at = interval * generator.uniform(0.3, 0.8)
    for _ in range(count):
        lasts = interval * generator.uniform(0.1, 1.0)
        target = generator.choice(("one", "leader", "controller"))
        found.append(PlannedFault(at, lasts, "kill", target, generator.random()))
        at += lasts + interval * generator.uniform(0.2, 0.8)
    return found


def links(target: str, victim: int, nodes: Sequence[int], choice: float) -> list[tuple[int, int]]:
    """Return the directed links (from, to) that a network partition with this target cuts around the node `victim`."""
    others = [node for node in nodes if node != victim]
    incoming = [(other, victim) for other in others]
    outgoing = [(victim, other) for other in others]
    if target == "one-way":
        return incoming if choice < 0.5 else outgoing
    if target == "bridge":
        other = others[int(choice * len(others))]
        return [(victim, other), (other, victim)]
    if target == "all":
        return [(one, other) for one in nodes for other in nodes if one != other]
    return incoming + outgoing
