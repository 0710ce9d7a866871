"""The settings of a joint workload, and of each of its writers' processes; drawn from a seed. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

__all__ = ["CALM", "WORKLOADS", "JointPlan", "LifePlan"]

WORKLOADS = ("wide", "tally", "prepare", "names")
"""The names in `RunOptions.workloads` of the workloads in this package."""
DAY_MS = 86_400_000
TOPIC_LENGTH = 249
"""The length of the longest topic name that Kafka allows."""
LONG_ID = 1_000
"""The length of the longest ids. Kafka has no rule for the length of an id; only the protocol limits it, to 32,767
bytes.
"""
TOPIC_LETTERS = "abyzABYZ0189._-"
ODD_LETTERS = "aZ0 ._-:/\\%&?*<>{}[]()'\"`$!@#^~+=,;|\t\u00e9\u4e2d\U0001f9ea"
"""Characters of ids. All are valid in group ids, transactional ids and client ids."""
TIMEOUTS_MS = (1_500, 5_000, 20_000)
ENDS = ("close", "die", "die", "zombie")
PREPARED_ENDS = ("close", "die", "die", "die")


@attrs.frozen
class JointPlan:
    """The settings of one workload. `configs` is the configuration that only this workload's topic has."""

    workload: str
    topic: str
    partitions: int
    configs: Mapping[str, str]
    group: str
    slots: tuple[str, ...]
    """The writers' slots, one for each transactional id. The names of their machines begin with the slot's name."""
    transactional_ids: Mapping[str, str]
    client_ids: Mapping[str, str]
    keys: int
    """How many keys each writer uses in each partition."""
    is_compacted: bool = False
    is_two_phase: bool = False
    commits_offsets: bool = True

    @classmethod
    def draw(cls, seed: int, workload: str, *, two_phase: bool) -> JointPlan:
        """Draw the settings of a workload for a seed. `two_phase` is True if the brokers allow two-phase commits
        (KIP-939).
        """
        random = Random(f"{seed}/{workload} plan")
        slots = (f"{workload}-1", f"{workload}-2")
        plain = cls(
            workload,
            f"{workload}-joint",
            random.choice((1, 3)),
            {},
            f"{workload}-group",
            slots,
            dict(zip(slots, slots, strict=True)),
            dict(zip(slots, slots, strict=True)),
            keys=random.choice((2, 8)),
            is_two_phase=workload == "prepare" and two_phase,
        )
        if workload == "wide":
            return attrs.evolve(plain, partitions=random.choice((6, 12, 20)))
        if workload == "tally":
            return attrs.evolve(
                plain, is_compacted=True, commits_offsets=False, configs=_compacted_configs(random)
            )
        if workload == "names":
            return plain._with_odd_names(random)
        return plain

    def _with_odd_names(self, random: Random) -> JointPlan:
        ids = {slot: f"{slot}{_odd_id(random)}" for slot in self.slots}
        topic = "".join(random.choice(TOPIC_LETTERS) for _ in range(random.choice((1, 40, TOPIC_LENGTH))))
        if set(topic) <= {".", "_"}:
            topic = "-"
        return attrs.evolve(
            self,
            topic=topic,
            group=_odd_id(random),
            transactional_ids=ids,
            client_ids={slot: _odd_id(random) for slot in self.slots},
        )


def _compacted_configs(random: Random) -> dict[str, str]:
    """Draw the configuration of a topic in which much is compacted within seconds."""
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": random.choice(("0.01", "0.01", "0.5")),
        "delete.retention.ms": random.choice((str(DAY_MS), "0", "2000")),
        "max.compaction.lag.ms": random.choice(("9223372036854775807", "3000")),
        "internal.segment.bytes": random.choice(("700", "2000", "6000")),
        "segment.ms": random.choice(("604800000", "2000")),
        "file.delete.delay.ms": random.choice(("0", "1000")),
    }


def _odd_id(random: Random) -> str:
    return "".join(random.choice(ODD_LETTERS) for _ in range(random.choice((1, 20, 249, LONG_ID))))


@attrs.frozen
class LifePlan:
    """The settings of one writer process."""

    is_explicit: bool
    """True if partitions and offsets are added to a transaction by separate requests (`transaction.version` 1)."""
    timeout_ms: int
    partitions_share: float
    """The share of the partitions to which a transaction writes."""
    abort_share: float
    stall_share: float
    stall_seconds: float
    commits: int
    """The largest number of offset commits in a transaction."""
    plain_share: float
    """The probability that a transaction is followed by a plain commit, which is outside any transaction."""
    resume_share: float
    """The probability that a process resumes the transaction that the previous process has prepared. Otherwise the
    process aborts that transaction.
    """
    leave_share: float
    """The probability that a process leaves a prepared transaction to the next process."""
    calm_seconds: float
    end: str
    life_seconds: float

    @classmethod
    def draw(cls, random: Random, *, is_two_phase: bool) -> LifePlan:
        """Draw the settings of a process."""
        drawn = cls(
            random.random() < 0.5,
            random.choice(TIMEOUTS_MS),
            random.choice((0.1, 0.5, 1.0)),
            random.choice((0.0, 0.2, 0.5)),
            random.choice((0.0, 0.1, 0.3)),
            random.choice((0.1, 1.0, 3.0)),
            random.choice((0, 1, 2, 3)),
            random.choice((0.0, 0.3, 0.8)),
            random.choice((0.5, 1.0)),
            random.choice((0.1, 0.5)),
            random.choice((0.1, 0.5)),
            random.choice(ENDS),
            random.uniform(0.5, 6.0),
        )
        if not is_two_phase:
            return drawn
        # Prepared transactions need the newer protocol. The process must end so that the next process can find the
        # transaction.
        return attrs.evolve(drawn, is_explicit=False, end=random.choice(PREPARED_ENDS))


CALM = LifePlan(False, 10_000, 0.5, 0.0, 0.0, 0.0, 2, 1.0, 1.0, 0.0, 0.0, "close", 0.0)
"""The settings of each slot's last process: it ends its transactions, so that nothing is left undecided."""
