"""Bounds of outages: the longest outage in seconds that each fault may cause. The bounds follow from the configured
timeouts. PURE.

docs/simulation.md has the table for readers, with the times that correct runs need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import attrs

from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import DISK_FULL, DISK_HUNG
from sim.machine.weather import Weather

Subject = Literal["quorum", "partition", "coordinator", "group"]
LOST_SECONDS = 1.4
"""How many seconds a TCP segment is delayed if it is lost three times in a row."""
TURNS = 4
"""How many long turns of event loops may delay a few successive steps, counted over all processes."""
WORK_PIECES = 2
"""How many pieces of slow disk work may follow each other while a leader is elected or a log is loaded."""

JOIN_GRACE_SECONDS = 5.0
"""How many seconds after the rebalance timeout a member gives up a JoinGroup request (Kafka's rule). A member waits
that long if its connection was silently lost. Afterwards it finds the coordinator over another connection, within a
request timeout.
"""

HANGS = "with a disk that hangs"
"""Reason of an outage: the new leader cannot create its log, because its disk hung before the election."""
FULL = "with a full disk"
"""Reason of an outage: the new leader's disk was full before the election. So the new leader cannot create its log,
or store the metadata.
"""

__all__ = ["BOUNDS", "FULL", "GROUP_BOUNDS", "HANGS", "GroupTimeouts", "Subject", "Timeouts"]


@attrs.frozen
class Timeouts:
    """For each timeout, its largest value among the nodes of a cluster, in seconds."""

    session: float
    election: float
    fetch: float
    hung: float
    """The time after which a broker gives up the partitions on a disk that hangs."""
    full: float
    """The time after which a broker reports that a disk is full."""
    weather: float
    """The largest delay of a few successive steps by the weather: by a slow network, slow disks and slow CPUs."""
    unnoticed: float
    """How many seconds may pass until followers notice that the leader's process has closed its connections."""

    @classmethod
    def of(cls, configs: Iterable[NodeConfig], weather: Weather) -> Timeouts:
        """Read the timeouts from the nodes' configurations."""
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
            # The end of a connection may arrive late. In that case a follower sends its request again after the
            # request timeout.
            min(weather.late_seconds, longest("controller.quorum.request.timeout.ms"))
            if weather.late_probability
            else 0.0,
        )


@attrs.frozen
class GroupTimeouts:
    """The largest timeouts of a group's members, in seconds."""

    session: float
    rebalance: float
    """`max.poll.interval.ms`: how long a rebalance waits for members."""
    request: float
    """The members' request timeout."""


def _mishaps(weather: Weather) -> float:
    """Compute the largest delay of a few successive steps in seconds: the sum of network spikes, a lost segment, long
    turns and slow disk work.
    """
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
"""The longest outage in seconds, by (the missing service, the fault that hit the former server)."""
GROUP_BOUNDS: Mapping[str, Callable[[Timeouts, GroupTimeouts], float]] = {
    "rebalance": lambda times, group: max(group.session, group.rebalance) + 2.0 + times.weather,
    "members": lambda times, group: (
        max(group.session, group.request) + group.rebalance + JOIN_GRACE_SECONDS + 2.0 + times.weather
    ),
}
"""The longest outage of a group in seconds, by kind: a rebalance takes too long, or the group does not become stable."""
