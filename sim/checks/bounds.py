"""Bounds of outages: the time that each fault may cost, from the configured timeouts. PURE.

docs/simulation.md has the table for readers, with what sound runs need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import attrs

from odradek.node.configuration.node_config import DISK_FULL, DISK_HUNG, NodeConfig
from sim.machine.weather import Weather

Subject = Literal["quorum", "partition", "coordinator", "group"]
LOST_SECONDS = 1.4
"""The seconds until a TCP segment arrives that is lost three times in a row."""
TURNS = 4
"""The long turns of loops, of several processes, that may follow each other in a few steps."""
WORK_PIECES = 2
"""The pieces of slow disk work that may follow each other in an election or in the load of a log."""

JOIN_GRACE_SECONDS = 5.0
"""A member gives up a JoinGroup this long after the rebalance timeout (Kafka's rule). On a connection that the
network has forgotten it waits that long; then it finds the coordinator over another connection, within a request
timeout.
"""

HANGS = "with a disk that hangs"
"""The new leader cannot make its log: its disk hung before it was named."""
FULL = "with a full disk"
"""The new leader cannot make its log, or store the metadata that name it: its disk was full before."""

__all__ = ["BOUNDS", "FULL", "GROUP_BOUNDS", "HANGS", "GroupTimeouts", "Subject", "Timeouts"]


@attrs.frozen
class Timeouts:
    """The longest of each timeout among the nodes of a cluster, in seconds."""

    session: float
    election: float
    fetch: float
    hung: float
    """The time after which a broker gives up the partitions of a disk that hangs."""
    full: float
    """The time after which a broker reports that a disk is full."""
    weather: float
    """The time that the weather may add to a few steps in a row."""
    unnoticed: float
    """The time for which followers may not notice that the leader's process has closed its connections."""

    @classmethod
    def of(cls, configs: Iterable[NodeConfig], weather: Weather) -> Timeouts:
        """Read the timeouts in these files."""
        files = list(configs)

        def longest(key: str) -> float:
            return max(each.get_int(key) for each in files) / 1000

        return cls(
            longest("broker.session.timeout.ms"),
            longest("controller.quorum.election.timeout.ms"),
            longest("controller.quorum.fetch.timeout.ms"),
            longest(DISK_HUNG),
            longest(DISK_FULL),
            _mishaps(weather),
            # The notice may be late. Then a follower asks again once its request has run out of time.
            min(weather.late_seconds, longest("controller.quorum.request.timeout.ms"))
            if weather.late_probability
            else 0.0,
        )


@attrs.frozen
class GroupTimeouts:
    """The longest timeouts of a group's members, in seconds."""

    session: float
    rebalance: float
    """`max.poll.interval.ms`: the time for which a rebalance waits for members."""
    request: float
    """The members' request timeout."""


def _mishaps(weather: Weather) -> float:
    """Compute the seconds by which a spike, a lost segment and slow disk work each may delay a few steps."""
    seconds = 0.0
    if weather.spike_probability:
        seconds += weather.spike_seconds
    if weather.loss_probability:
        seconds += LOST_SECONDS
    if weather.wake_seconds:
        seconds += TURNS * weather.long_turn_seconds
    if weather.worker_spike_probability:
        seconds += WORK_PIECES * weather.worker_spike_seconds
    return seconds


def _election(times: Timeouts) -> float:
    return 2 * times.election + 1.0 + times.unnoticed + times.weather


def _unheard(times: Timeouts) -> float:
    return times.fetch + _election(times)


def _session(times: Timeouts) -> float:
    return times.session + 2.0 + times.weather


BOUNDS: Mapping[tuple[Subject, str], Callable[[Timeouts], float]] = {
    **{("quorum", why): _election for why in ("dead", "stopping", "other")},
    **{("quorum", why): _unheard for why in ("without power", "paused", "cut off")},
    **{
        ("partition", why): _session
        for why in ("dead", "stopping", "other", "without power", "paused", "cut off")
    },
    ("partition", HANGS): lambda times: times.hung + _session(times),
    ("partition", FULL): lambda times: times.full + _session(times),
    ("coordinator", "loading"): lambda times: 1.0 + times.weather,
}
"""The seconds, by the kind of outage and the trouble of the process that served before."""
GROUP_BOUNDS: Mapping[str, Callable[[Timeouts, GroupTimeouts], float]] = {
    "rebalance": lambda times, group: max(group.session, group.rebalance) + 2.0 + times.weather,
    "members": lambda times, group: (
        max(group.session, group.request) + group.rebalance + JOIN_GRACE_SECONDS + 2.0 + times.weather
    ),
}
"""The same for groups."""
