"""Comparison of a coordinator's consumer groups with a model built from its log. PURE.

When a member changes, the coordinator updates owners of partitions, instance ids, and how many members name each
topic, pattern or assignor. The model computes the same results anew from all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, Member
from odradek.data_plane.groups.state import GroupsState
from sim.checks.folds.consumer_fold import ConsumerFold, ConsumersFold, Slot

__all__ = ["consumers_difference"]

STATES = {0: "STABLE", 1: "UNREVOKED_PARTITIONS", 2: "UNRELEASED_PARTITIONS"}


def consumers_difference(fold: ConsumersFold, state: GroupsState) -> str | None:
    """Describe the first difference between a coordinator's consumer groups and the model of its log; None if they are
    equal. A coordinator that loads the log may leave out a group of which no record has a value.
    """
    groups = dict(state.consumers.items())
    optional = {group_id for group_id, each in fold.groups.items() if each.has_nothing}
    if {*groups} - optional != {*fold.groups} - optional:
        return f"the consumer groups {sorted(groups)}, and its log says {sorted(fold.groups)}"
    for group_id in sorted(groups):
        for what, known, said in _compared(groups[group_id], fold.groups[group_id]):
            if known != said:
                return f"{known} as {what} of {group_id}, and its log says {said}"
    return None


def _compared(group: ConsumerGroup, fold: ConsumerFold) -> Iterable[tuple[str, object, object]]:
    yield "epochs", (group.epoch, group.target_epoch), (fold.epoch, fold.target_epoch)
    yield "hash", group.metadata_hash, fold.topics_hash
    yield "time of the target", group.target_timestamp_ms, fold.target_ms
    yield "members", {*group.members}, {*fold.profiles, *fold.currents}
    for member_id in sorted(group.members):
        yield f"member {member_id}", _known(group.members[member_id]), _said(fold, member_id)
    targets = {name: _without_empty(each) for name, each in group.targets.items()}
    yield "targets", targets, {name: _without_empty(each) for name, each in fold.targets.items()}
    owners = {slot: [owner] for slot, owner in group.owners.items()}
    yield "owners", owners, fold.owners()
    resolved = {name: (each.topics, each.version) for name, each in group.resolved.items()}
    said = {name: (frozenset(each.topics), each.version) for name, each in fold.patterns.items()}
    yield "patterns", resolved, said
    yield from _counts(group, fold)


def _known(member: Member) -> tuple[object, ...]:
    return (
        member.epoch,
        member.previous_epoch,
        member.state.name,
        _flat(member.assigned),
        _flat(member.revoking),
        member.profile.instance_id,
        member.profile.topics,
        member.profile.pattern,
        member.profile.rebalance_timeout_ms,
        member.profile.classic is not None,
    )


def _said(fold: ConsumerFold, member_id: str) -> tuple[object, ...]:
    profile, current = fold.profiles.get(member_id), fold.currents.get(member_id)
    if profile is None:
        return ("no profile",)
    epochs = (0, -1, "STABLE")
    if current is not None:
        epochs = (current.member_epoch, current.previous_member_epoch, STATES[current.state])
    return (
        *epochs,
        fold.assigned(member_id),
        fold.revoking(member_id),
        profile.instance_id,
        tuple(sorted(dict.fromkeys(profile.subscribed_topic_names))),
        profile.subscribed_topic_regex or "",
        profile.rebalance_timeout_ms,
        profile.classic_member_metadata is not None,
    )


def _flat(epochs: Mapping[bytes, Mapping[int, int]]) -> dict[Slot, int]:
    return {(topic, index): epoch for topic, some in epochs.items() for index, epoch in some.items()}


def _without_empty(target: Mapping[bytes, frozenset[int]]) -> dict[bytes, frozenset[int]]:
    return {topic: partitions for topic, partitions in target.items() if partitions}


def _counts(group: ConsumerGroup, fold: ConsumerFold) -> Iterable[tuple[str, object, object]]:
    profiles = [*fold.profiles.values()]
    topics = Counter(name for each in profiles for name in dict.fromkeys(each.subscribed_topic_names))
    yield "readers of topics", dict(group.topic_counts.items()), dict(topics)
    patterns = Counter(each.subscribed_topic_regex for each in profiles if each.subscribed_topic_regex)
    yield "readers by patterns", dict(group.pattern_counts.items()), dict(patterns)
    assignors = Counter(each.server_assignor for each in profiles if each.server_assignor is not None)
    yield "assignors", dict(group.assignor_counts.items()), dict(assignors)
    classic = sum(each.classic_member_metadata is not None for each in profiles)
    yield "classic members", group.classic_count, classic
    instances = {
        each.instance_id: name for name, each in fold.profiles.items() if each.instance_id is not None
    }
    yield "instance ids", dict(group.static_members.items()), instances
