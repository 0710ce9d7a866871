"""The settings of both servers, so that cases need not wait long: Kafka's when recorded, ours when compared."""

from __future__ import annotations

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "50",
    "group.max.size": "4",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}
