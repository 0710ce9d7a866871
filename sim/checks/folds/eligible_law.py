"""A law of decisions about eligible leader replicas (KIP-966): who has all committed records stays eligible. PURE.

While the ISR is below `min.insync.replicas`, nothing is committed. So a member that leaves such an ISR has all committed
records and becomes eligible, and eligible replicas stay so. A replica is no longer eligible in these cases:

* It joins the ISR, or is no replica any more.
* Its directory changes, since the replica may begin anew there.
* An unclean election has made a leader that may lack records.
* Its broker registers after an unclean stop. The registration follows in the log.
* A change of `min.insync.replicas` or of the feature follows in the log.

In the last two cases the record that explains the change is behind the change, in the same decision. So a complaint
waits until a record arrives that ends the decision.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.checks.folds.metadata_fold import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    TOPIC_RESOURCE,
    MetadataFold,
)
from sim.history import SafetyViolation

__all__ = ["EligibleLaw"]

FEATURE, MIN_ISR = "eligible.leader.replicas.version", "min.insync.replicas"
RECOVERING = 1
BROKER_RESOURCE = 4


@attrs.frozen
class _Forgotten:
    """A replica that is no longer eligible, without a reason so far."""

    topic: str
    broker_id: int
    complaint: str


class EligibleLaw:
    """The law for one log. `judge` is called with each record and the state before it."""

    def __init__(self) -> None:
        self._state: MetadataFold | None = None
        self._forgotten: list[_Forgotten] = []
        self.seen = 0
        """How many changes below `min.insync.replicas` were judged."""

    def judge(self, state: MetadataFold, record: Message) -> None:
        """Raise `SafetyViolation` if a record shows that an earlier one had no reason."""
        if state is not self._state:
            self._state, self._forgotten = state, []
        match record:
            case wire.PartitionChangeRecord():
                if state.features.get(FEATURE, 0) >= 1:
                    self._change(state, record)
            case _ if not self._forgotten:
                pass
            case wire.RegisterBrokerRecord():
                self._explain(lambda each: each.broker_id == record.broker_id)
                self._end()
            case wire.FeatureLevelRecord() if record.name == FEATURE:
                self._forgotten = []
            case wire.ConfigRecord() if record.name == MIN_ISR:
                is_wide = record.resource_type == BROKER_RESOURCE
                name = record.resource_name
                self._explain(lambda each: is_wide or each.topic == name)
            case wire.ConfigRecord() | wire.FeatureLevelRecord() | wire.ClearElrRecord():
                pass
            case _:
                self._end()

    def _explain(self, is_explained: Callable[[_Forgotten], bool]) -> None:
        self._forgotten = [each for each in self._forgotten if not is_explained(each)]

    def _end(self) -> None:
        if self._forgotten:
            raise SafetyViolation(f"decision: {self._forgotten[0].complaint}")

    def _change(self, state: MetadataFold, record: wire.PartitionChangeRecord) -> None:
        if record.isr is None and record.eligible_leader_replicas is None:
            return
        topic = state.topics.get(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if topic is None or before is None:
            return  # The fold complains itself.
        isr = before.isr if record.isr is None else tuple(record.isr)
        given = record.eligible_leader_replicas
        elr = before.elr if given is None else tuple(given)
        replicas = before.replicas if record.replicas is None else tuple(record.replicas)
        min_isr = _min_isr(state, topic.name)
        if min_isr is None or len(isr) >= min(min_isr, len(replicas)):
            return
        self.seen += 1
        change = record.leader_recovery_state
        recovery = before.leader_recovery_state if change == NO_RECOVERY_CHANGE else change
        if recovery == RECOVERING and record.leader != NO_LEADER_CHANGE:
            return
        directories = before.directories if record.directories is None else tuple(record.directories)
        had = dict(zip(before.replicas, before.directories, strict=True))
        has = dict(zip(replicas, directories, strict=True))
        for each in dict.fromkeys((*before.isr, *before.elr)):
            if each in isr or each in elr or each not in has or has[each] != had.get(each):
                continue
            self._forgotten.append(
                _Forgotten(
                    topic.name,
                    each,
                    f"behind offset {state.offset} of the metadata log, replica {each} of {topic.name}-{record.partition_id} is "
                    f"forgotten; {isr} are in sync with {min_isr} as the least, and {elr} eligible",
                )
            )


def _min_isr(state: MetadataFold, topic: str) -> int | None:
    """Return `min.insync.replicas` of a topic by the log alone; None if only files have it."""
    for resource in ((TOPIC_RESOURCE, topic), (BROKER_RESOURCE, "")):
        values = state.configs.get(resource, {}).get(MIN_ISR)
        if values:
            return int(values[-1]) if values[-1].isdecimal() else None
    return None
