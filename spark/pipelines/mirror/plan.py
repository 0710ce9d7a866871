"""The plan of a mirror: topics to create, to extend and to change, ACLs to add, and settings that cannot be mirrored.
PURE.

`surveys.py` collects the facts about both clusters, and carries out a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import attrs

from odradek.security.acls.rules import ANY_NAME, Acl, PatternType, ResourceType

__all__ = ["ClusterFacts", "Plan", "TopicFacts", "TopicPlan", "matching", "plan_of"]

_TIMESTAMP_TYPE = "message.timestamp.type"
_NOT_COPIED = {
    "leader.replication.throttled.replicas": "",
    "follower.replication.throttled.replicas": "",
    "message.timestamp.before.max.ms": "the target would refuse records for their age: set this after the move",
    "message.timestamp.after.max.ms": "the target would refuse records for their timestamps: set this after the move",
    "remote.storage.enable": "the target keeps all records on its own disks",
    "local.retention.ms": "",
    "local.retention.bytes": "",
}
"""Settings that are not copied. Each has the sentence that the plan prints about it."""


@attrs.frozen
class TopicFacts:
    """One topic of a cluster. `settings` has the settings that differ from the product's defaults."""

    name: str
    topic_id: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


@attrs.frozen
class ClusterFacts:
    """The facts about one cluster that a plan needs."""

    cluster_id: str
    brokers: int
    topics: Mapping[str, TopicFacts]
    acls: frozenset[Acl] | None
    """The cluster's ACLs; None if it has no authorizer."""
    groups: tuple[str, ...] = ()


@attrs.frozen
class TopicPlan:
    """The wanted state of one topic in the target, and the changes that lead to this state."""

    name: str
    partitions: int
    replicas: int
    present: int
    """The number of partitions that the target's topic has; 0 if the topic must be created."""
    settings: Mapping[str, str]
    """The settings with which the topic is created, or the settings to change if it exists already."""

    def __str__(self) -> str:
        settings = "".join(f" {key}={value}" for key, value in sorted(self.settings.items()))
        if not self.present:
            return f"create  {self.name}: {self.partitions} partitions, {self.replicas} replicas{settings}"
        if self.present < self.partitions:
            return f"grow    {self.name}: {self.present} to {self.partitions} partitions{settings}"
        return f"{'set    ' if settings else 'keep   '} {self.name}{settings}"


@attrs.frozen
class Plan:
    """The steps that a mirror makes before it copies, and the things that it cannot copy."""

    topics: tuple[TopicPlan, ...]
    acls: tuple[Acl, ...]
    groups: tuple[str, ...]
    losses: tuple[str, ...]
    """Things of the source that the target will not have, with one sentence for each."""
    refusals: tuple[str, ...]
    """The reasons why the mirror must not begin, with one sentence for each reason."""

    def lines(self) -> Iterable[str]:
        """Yield the lines of the plan for the terminal."""
        yield from map(str, self.topics)
        for acl in self.acls:
            yield f"acl     {acl}"
        for group in self.groups:
            yield f"group   {group}"
        for loss in self.losses:
            yield f"lost    {loss}"
        for refusal in self.refusals:
            yield f"refused {refusal}"


def matching(names: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the names that match one of the patterns (`*` and `?` as in file names), sorted."""
    wanted = tuple(patterns)
    return tuple(sorted(name for name in names if any(fnmatchcase(name, each) for each in wanted)))


def plan_of(source: ClusterFacts, target: ClusterFacts, *, group_patterns: Iterable[str] = ()) -> Plan:
    """Make the plan that prepares `target` for the topics of `source`. `source` must have only the topics to copy."""
    losses = [
        "transactions of the source: aborted records are not copied, and the records of a transaction do not appear at once in the target"
    ]
    refusals: list[str] = []
    if source.cluster_id == target.cluster_id:
        refusals.append("source and target are the same cluster")
    topics = []
    for name in sorted(source.topics):
        topic, there = source.topics[name], target.topics.get(name)
        settings = _settings(topic, losses)
        replicas = min(topic.replicas, target.brokers)
        if there is None and replicas < topic.replicas:
            losses.append(
                f"{name}: {topic.replicas} replicas cannot be kept, because the target has "
                f"{target.brokers} brokers"
            )
        if int(settings.get("min.insync.replicas", "1")) > replicas:
            losses.append(f"{name}: min.insync.replicas={settings.pop('min.insync.replicas')}")
        if there is not None:
            if there.partitions > topic.partitions:
                refusals.append(
                    f"{name} has {there.partitions} partitions in the target, and {topic.partitions} "
                    "in the source"
                )
            if there.settings.get(_TIMESTAMP_TYPE) == "LogAppendTime":
                refusals.append(
                    f"{name} has {_TIMESTAMP_TYPE}=LogAppendTime in the target, so timestamps would be lost"
                )
            settings = {key: value for key, value in settings.items() if there.settings.get(key) != value}
        topics.append(
            TopicPlan(name, topic.partitions, replicas, 0 if there is None else there.partitions, settings)
        )
    groups = matching(source.groups, group_patterns)
    acls = _acls(source, target, groups, losses)
    return Plan(tuple(topics), acls, groups, tuple(losses), tuple(refusals))


def _settings(topic: TopicFacts, losses: list[str]) -> dict[str, str]:
    kept = dict(topic.settings)
    for key, reason in _NOT_COPIED.items():
        value = kept.pop(key, None)
        if value and reason:
            losses.append(f"{topic.name}: {key}={value}: {reason}")
    if kept.get(_TIMESTAMP_TYPE) == "LogAppendTime":
        del kept[_TIMESTAMP_TYPE]
        losses.append(
            f"{topic.name}: {_TIMESTAMP_TYPE}=LogAppendTime: the copies keep these times as "
            "CreateTime; set this after the move"
        )
    return kept


def _acls(
    source: ClusterFacts, target: ClusterFacts, groups: Iterable[str], losses: list[str]
) -> tuple[Acl, ...]:
    if not source.acls:
        return ()
    if target.acls is None:
        losses.append(f"{len(source.acls)} ACLs: the target has no authorizer")
        return ()
    wanted = {
        acl
        for acl in source.acls
        if (acl.resource_type == ResourceType.TOPIC and _concerns(acl, source.topics))
        or (acl.resource_type == ResourceType.GROUP and _concerns(acl, groups))
    }
    others = len(source.acls) - len(wanted)
    if others:
        losses.append(
            f"{others} ACLs of other topics, groups, the cluster, transactional ids, tokens and users"
        )
    return tuple(sorted(wanted - target.acls, key=str))


def _concerns(acl: Acl, names: Iterable[str]) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return any(name.startswith(acl.resource_name) for name in names)
    return acl.resource_name == ANY_NAME or acl.resource_name in names
