"""The schedule of a cluster's faults, when and for how long: drawn from a seed before the run begins. PURE.

Targets are chosen as words (`one`, `leader`, `controller`, `majority`, `all`); who that is, the nemesis finds out
when the moment has come. What the fault model permits: any number of nodes may be killed or paused at once. Each
comes back with its disk and page cache. Links may be cut in any combination, one way or both ways.
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
"""The targets that may be drawn for each kind of fault; what stands twice comes twice as often.

isolate: a node is cut off from the others, both ways. one-way: it hears nobody, or stays unheard. bridge:
one link is cut, and the third node still sees both. all: nobody sees anybody.
"""
KINDS = tuple(TARGETS)
INTERVAL_SECONDS = 8.0


@attrs.frozen
class PlannedFault:
    """Begins `at` seconds after the start and is undone after `lasts` seconds. `choice` (0 to 1) makes the random
    choices.
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
    """Plan faults of each kind, one after the other, kinds beside each other; all have ended when `seconds` are
    over.

    `targets` leaves only the named targets of a kind (none: all). Raises `ValueError` for an unknown kind, or for a
    kind that is left without a target.
    """
    found = []
    for kind in kinds:
        if kind not in TARGETS:
            raise ValueError(f"no fault is called {kind!r}; there are {', '.join(KINDS)}")
        drawn = [target for target in TARGETS[kind] if not targets or target in targets]
        if not drawn:
            raise ValueError(
                f"{kind} has none of the targets {', '.join(targets)}: {', '.join(TARGETS[kind])}"
            )
        generator = random.Random(f"{seed} {kind}")
        at = interval * generator.uniform(0.3, 0.8)
        while at + interval * 0.25 < seconds:
            lasts = min(interval * generator.uniform(0.1, 1.0), seconds - at)
            found.append(PlannedFault(at, lasts, kind, generator.choice(drawn), generator.random()))
            at += lasts + interval * generator.uniform(0.2, 0.8)
    return sorted(found, key=lambda fault: fault.at)


def plan_kills(seed: int, count: int, interval: float = INTERVAL_SECONDS) -> list[PlannedFault]:
    """Plan `count` kills of one node each, which clients must survive; each begins after the one before has ended."""
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
    """Return the directed links (from, to) that a partition of this kind cuts around `victim`."""
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
