"""The settings of a classic group in `crowd.py` and of each of its members' processes, drawn from a seed. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from sim.load.workload import FETCH_BYTES_MAX

__all__ = ["CALM", "GroupPlan", "MemberPlan"]

ASSIGNORS = ("range", "roundrobin", "cooperative-sticky", "cooperative-sticky")
RACKS = ("", "rack-1", "rack-2")
ENDS = ("close", "close", "close", "die", "stall", "unsubscribe")


@attrs.frozen
class GroupPlan:
    """The settings that all members of a group share."""

    assignor: str
    members: int
    static: float
    """The probability that a slot's members are static members (KIP-345)."""

    @classmethod
    def draw(cls, random: Random) -> GroupPlan:
        """Draw the settings of a group."""
        return cls(random.choice(ASSIGNORS), random.choice((2, 3)), random.choice((0.0, 0.5, 1.0)))


@attrs.frozen
class MemberPlan:
    """The settings of one member, from its start to its end."""

    settings: Mapping[str, str]
    auto_commit: bool
    commit_share: float
    """The probability that a member without automatic commits commits after a poll."""
    waits: bool
    """True if the member waits for the answers to its own commits."""
    seek_share: float
    late_share: float
    """The probability that the member tries a commit of the previous generation after a new assignment."""
    rest_seconds: float
    end: str
    life_seconds: float

    @classmethod
    def draw(cls, random: Random, session_ms: int) -> MemberPlan:
        """Draw settings. `session_ms` is the shortest session timeout that the brokers accept."""
        auto_commit = random.random() < 0.5
        settings = {
            "enable.auto.commit": str(auto_commit).lower(),
            "auto.commit.interval.ms": random.choice(("100", "1000", "5000")),
            "max.poll.records": random.choice(("1", "7", "200")),
            "fetch.max.bytes": random.choice(("1", "5000", str(FETCH_BYTES_MAX))),
            "max.partition.fetch.bytes": random.choice(("1", "2000", "1048576")),
            "fetch.max.wait.ms": random.choice(("10", "500")),
            "client.rack": random.choice(RACKS),
            "session.timeout.ms": str(random.choice((session_ms, session_ms, 2 * session_ms))),
            "heartbeat.interval.ms": str(random.choice((session_ms // 4, session_ms // 2))),
        }
        return cls(
            settings,
            auto_commit,
            random.choice((0.1, 0.5, 1.0)),
            random.random() < 0.6,
            random.choice((0.0, 0.0, 0.03)),
            random.choice((0.0, 0.5)),
            random.choice((0.0, 0.02, 0.2)),
            random.choice(ENDS),
            random.uniform(0.5, 6.0),
        )


CALM = MemberPlan(
    {
        "enable.auto.commit": "false",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
        "fetch.max.bytes": str(FETCH_BYTES_MAX),
    },
    auto_commit=False,
    commit_share=1.0,
    waits=True,
    seek_share=0.0,
    late_share=0.0,
    rest_seconds=0.0,
    end="close",
    life_seconds=0.0,
)
"""The settings of a slot's last member, which reads to the end."""
