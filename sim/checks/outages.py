"""Outages, and the check of their duration against the table of bounds. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.data_plane.broker import Broker
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.bounds import BOUNDS, GROUP_BOUNDS, GroupTimeouts, Subject, Timeouts
from sim.checks.fitness import Fitness
from sim.machine.members import Member
from sim.machine.world import Liveness

if TYPE_CHECKING:
    from sim.machine.world import World

__all__ = ["Outage", "Outages", "Server"]


@attrs.frozen(eq=False)
class Server:
    """The process that serves a partition."""

    key: TopicIdPartition
    member: Member
    broker: Broker
    image: PartitionImage
    since: float


@attrs.define(eq=False)
class Outage:
    """An outage, with the time when it began and its reason. The reason is the fault that hit the former server."""

    since: float
    why: str
    able: dict[int, float] = attrs.Factory(dict)
    """The brokers that may be elected according to the committed metadata, each with the virtual time since which it
    may be elected. This time differs if an operator adds a broker late.
    """


class Outages:
    """The check of outages against the table of bounds. `longest` has for each row the longest outage and its bound,
    in seconds.
    """

    def __init__(self, world: World, members: Sequence[Member], fitness: Fitness) -> None:
        self.world = world
        self._members = members
        self._fitness = fitness
        self._configs: list[object] = []
        self._timeouts: Timeouts | None = None
        self.longest: dict[tuple[Subject, str], tuple[float, float]] = {}

    def timeouts(self) -> Timeouts:
        """Return the timeouts of the nodes' present configurations."""
        configs = [member.config for member in self._members]
        if self._timeouts is None or configs != self._configs:
            self._configs = list(configs)
            self._timeouts = Timeouts.of(configs, self.world.weather)
        return self._timeouts

    def judge(
        self,
        subject: Subject,
        outage: Outage,
        since: float,
        what: str,
        could: str,
        group: GroupTimeouts | None = None,
    ) -> None:
        """Raise `Liveness` if an outage exceeds its bound. The outage counts from its beginning or from `since`,
        whichever is later. `since` is the virtual time since which the nodes that could serve have been fit.
        """
        begins = max(outage.since, since)
        waited = self.world.now - begins
        if group is None:
            bound = BOUNDS[subject, outage.why](self.timeouts())
        else:
            bound = GROUP_BOUNDS[outage.why](self.timeouts(), group)
        longest = self.longest.get((subject, outage.why))
        if longest is None or waited / bound > longest[0] / longest[1]:
            self.longest[subject, outage.why] = (waited, bound)
        if waited > bound:
            raise Liveness(
                f"seed {self.world.seed}: availability: {what} since {outage.since:.2f} s ({outage.why}). No fault"
                f" has hit the nodes that could serve since {begins:.2f} s: {could}. The bound is {bound:.1f} s."
                f" Faults: {'; '.join(self._fitness.faults)}"
            )
