"""Counters of the decisions of this node's active controller, since the start of the process. PURE.

Elections are counted when a decision is committed, by comparing the images before and after it.
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataDelta, MetadataImage, TopicImage

__all__ = ["DecisionFigures"]


@attrs.define
class DecisionFigures:
    """Counters of one node. They are 0 on a node that has never been the active controller."""

    decisions: int = 0
    decision_seconds: float = 0.0
    """The time that the event loop has spent on deciding and replaying, in seconds."""
    commits: int = 0
    """The number of committed decisions with records."""
    commit_seconds: float = 0.0
    """The sum of the times from decisions to their commits, in seconds."""
    unclean_elections: int = 0
    """The number of elections of a leader that was neither in sync nor eligible, so that records may be lost."""
    eligible_elections: int = 0
    """The number of elections of a leader that was eligible but not in sync (KIP-966). It has all committed records."""
    fenced_by_timeout: int = 0
    fenced_at_death: int = 0
    fenced_by_silence: int = 0

    def committed(self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        """Count the elections in a committed decision."""
        for name, numbers in delta.changed_topics.items():
            topic: TopicImage | None = after.topics.get(name)
            known: TopicImage | None = before.topics.get(name)
            if topic is None or known is None or topic.topic_id != known.topic_id:
                continue
            for number in numbers:
                old, new = known.partitions.get(number), topic.partitions[number]
                if old is None or new.leader in (NO_LEADER, old.leader) or new.leader in old.isr:
                    continue
                self.eligible_elections += new.leader in old.elr
                self.unclean_elections += new.leader not in old.elr
