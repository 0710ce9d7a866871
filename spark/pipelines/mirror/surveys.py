"""Collects the facts about two clusters for a plan, and makes the plan's changes in the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek import Admin, KafkaError
from odradek.client.admin import AlterConfig, ConfigResource, ConfigSource, NewTopic, ResourceType
from odradek.client.admin.admin_acls import Acl, AclFilter
from odradek.security.acls.rules import Operation, PatternType, Permission
from odradek.security.acls.rules import ResourceType as AclResourceType
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.mirror.plan import ClusterFacts, Plan, TopicFacts, TopicPlan, matching
from odradek.wire.errors import ErrorCode

__all__ = ["perform", "survey"]

_ALL_ACLS = AclFilter(AclResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def survey(
    admin: Admin, patterns: Sequence[str], *, with_acls: bool = True, with_groups: bool = False
) -> ClusterFacts:
    """Collect the facts about one cluster, for the topics that match the patterns. Raises `KafkaError` and
    `ClientError`.
    """
    cluster = admin.describe_cluster()
    described = {
        each.name: each
        for each in admin.describe_topics()
        if not each.is_internal and not each.name.startswith(("__", "odradek-mirror-"))
    }
    names = matching(described, patterns)
    settings = _settings(admin, names)
    return ClusterFacts(
        cluster.cluster_id,
        len(cluster.brokers),
        {
            name: TopicFacts(
                name,
                described[name].topic_id.hex(),
                len(described[name].partitions),
                max((len(each.replicas) for each in described[name].partitions.values()), default=1),
                settings[name],
            )
            for name in names
        },
        _acls(admin) if with_acls else frozenset(),
        tuple(each.group_id for each in admin.list_groups()) if with_groups else (),
    )


def _settings(admin: Admin, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read the settings of each topic that differ from the product's defaults, whether they are set for the topic or
    for its brokers.
    """
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for described in admin.describe_configs(resources):
        if described.error is not None:
            raise described.error
        found[described.resource.name] = {
            entry.name: entry.value
            for entry in described.entries
            if entry.value is not None
            and entry.source not in (ConfigSource.DEFAULT_CONFIG, ConfigSource.UNKNOWN)
        }
    return found


def _acls(admin: Admin) -> frozenset[Acl] | None:
    try:
        return frozenset(admin.describe_acls(_ALL_ACLS))
    except KafkaError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            return None
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise Failed(
                "a cluster does not show its ACLs to this user: grant the user DESCRIBE on the "
                "cluster, or add --no-acls"
            ) from None
        raise


def perform(admin: Admin, plan: Plan) -> list[str]:
    """Make the plan's changes in the target. Return sentences about settings that the target does not know.

    Raises `Failed` for a refused change, and `ClientError`.
    """
    dropped: list[str] = []
    for topic in plan.topics:
        if not topic.present:
            dropped += _create(admin, topic)
            continue
        if topic.present < topic.partitions:
            for name, grown in admin.create_partitions({topic.name: topic.partitions}):
                if grown is not None:
                    raise Failed(f"{name} cannot get {topic.partitions} partitions: {grown}")
        for key, value in topic.settings.items():
            resource = ConfigResource(ResourceType.TOPIC, topic.name)
            for _, refused in admin.incremental_alter_configs({resource: [AlterConfig(key, value)]}):
                if refused is not None:
                    dropped.append(f"{topic.name}: {key}={value}: {refused}")
    if plan.acls:
        for acl, error in admin.create_acls(plan.acls).items():
            if error is not None:
                raise Failed(f"the target refuses the ACL {acl}: {error}")
    return dropped


def _create(admin: Admin, topic: TopicPlan) -> Iterable[str]:
    """Create a topic. Settings that the target refuses are left out, and a sentence about each is returned."""
    wanted = NewTopic(topic.name, topic.partitions, topic.replicas, topic.settings)
    [made] = admin.create_topics([wanted])
    if made.error is None or made.error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
        return []
    if made.error.code is not ErrorCode.INVALID_CONFIG:
        raise Failed(f"the topic '{topic.name}' cannot be created: {made.error}")
    refused = {}
    for key, value in topic.settings.items():
        [tried] = admin.create_topics(
            [NewTopic(topic.name, topic.partitions, topic.replicas, {key: value})], validate_only=True
        )
        if tried.error is not None and tried.error.code is ErrorCode.INVALID_CONFIG:
            refused[key] = f"{topic.name}: {key}={value}: {tried.error}"
    kept = {key: value for key, value in topic.settings.items() if key not in refused}
    [made] = admin.create_topics([NewTopic(topic.name, topic.partitions, topic.replicas, kept)])
    if made.error is not None:
        raise Failed(f"the topic '{topic.name}' cannot be created: {made.error}")
    return refused.values()
