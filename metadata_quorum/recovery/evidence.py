"""Evidence of records that the chosen copy lacks, and a list of removed things that the copy brings back.

An operator reads both before the recovery starts. PURE.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.metadata_quorum.image.access_image import AccessImage, QuotaEntity
from odradek.metadata_quorum.image.metadata_image import PartitionImage, TopicImage
from odradek.metadata_quorum.recovery.choice import Choice
from odradek.metadata_quorum.recovery.copies import MetadataCopy
from odradek.metadata_quorum.recovery.found import FoundNode
from odradek.metadata_quorum.recovery.recovered_image import UNKNOWN_TOPIC, Holdings
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["evidence", "review"]

_NUMBERS_MAX = 20


def evidence(choice: Choice, nodes: Sequence[FoundNode]) -> list[str]:
    """List the evidence that the copy lacks records, and the consequences, as sentences."""
    chosen = choice.chosen
    if chosen is None:
        return []
    lines = _about_copies(chosen, choice.copies)
    lines += [
        f"node {each} is absent: every partition gets its leader only when the node is back, because replicas may have moved there after the copy was made. Topics that only this node has come back by another recovery"
        for each in choice.absent
    ]
    for node in nodes:
        if node.quorum_epoch > chosen.end.epoch:
            lines.append(
                f"node {node.node_id} knows epoch {node.quorum_epoch}, but the copy ends in epoch {chosen.end.epoch}: a later leader may have written more records"
            )
        if node.producer_id >= chosen.image.next_producer_id:
            lines.append(
                f"node {node.node_id} has records of producer id {node.producer_id}, which the copy has not allocated yet"
            )
        lines += [f"node {node.node_id}: {each}" for each in node.unreadable]
        lines += [
            f"node {node.node_id}: the log directory {each} is blank or missing. If its disk is only not mounted, mount it "
            "and look again. Every partition gets its leader only when this node is back, because the disk may hold replicas of it"
            for each in node.blank_directories
        ]
        lines += [
            f"node {node.node_id}: the log directory {each.path} cannot be read ({each.problem}). It may hold a replica of each "
            "partition that was not found on this node: these get leaders only when the disk works again or is replaced"
            for each in node.dead_directories
        ]
    if choice.is_rebuilt:
        lines += _about_access(chosen.image.access)
    return lines + _about_topics(choice, chosen, nodes)


def _about_access(access: AccessImage) -> list[str]:
    """Report the consequences of a log that was rebuilt without users or rights."""
    lines = []
    if not access.scram_credentials:
        lines.append(
            "users are missing (--access FILE gives them): every login by SCRAM is refused, of clients and of brokers. So "
            "brokers that log in to each other by SCRAM copy nothing from each other"
        )
    if not access.acls:
        lines.append(
            "nobody has any rights (--access FILE gives them), except super.users, and everybody where "
            "allow.everyone.if.no.acl.found is set"
        )
    return lines


def _about_copies(chosen: MetadataCopy, copies: Sequence[MetadataCopy]) -> list[str]:
    others = [each for each in copies if each is not chosen and each.end == chosen.end]
    if others or chosen.node_id is None:
        return []
    return [
        f"no other copy reaches as far as that of {chosen.source}: its last records may never have been committed, but the recovery commits them"
    ]


def _about_topics(choice: Choice, chosen: MetadataCopy, nodes: Sequence[FoundNode]) -> list[str]:
    holdings, image, lines = Holdings(nodes), chosen.image, []
    for name, topic_id in sorted(choice.topics.items()):
        known: TopicImage | None = image.topics_by_id.get(topic_id)
        if known is None:
            settings = "without its configuration, so it keeps all records until you set one"
            if name in choice.configs:
                settings = "with the configuration of --topics, and keeps all records unless that configuration says otherwise"
            lines.append(
                f"topic {name} ({uuid_to_text(topic_id)}) was found only in directories: it comes back with "
                f"{_size(holdings, topic_id)}, {settings}"
            )
            lines += _unfound(holdings, name, topic_id)
            continue
        for number in holdings.partitions(topic_id):
            before: PartitionImage | None = known.partitions.get(number)
            for node_id, replica in holdings.of(topic_id, number).items():
                if before is None:
                    lines.append(
                        f"{name}-{number} on node {node_id} is a partition that the copy does not know"
                    )
                elif node_id not in before.replicas:
                    lines.append(
                        f"{name}-{number} is on node {node_id}, but the copy assigns it no replica there"
                    )
                elif replica.leader_epoch > before.leader_epoch:
                    lines.append(
                        f"{name}-{number} on node {node_id} has leader epoch {replica.leader_epoch}, but the copy has only {before.leader_epoch}"
                    )
    for node in nodes:
        for replica in node.replicas:
            key = f"{replica.topic}-{replica.partition} on node {node.node_id}"
            if replica.topic_id == UNKNOWN_TOPIC:
                lines.append(f"{key} does not say which topic it belongs to, so it is left unchanged")
            elif choice.topics.get(replica.topic) != replica.topic_id:
                lines.append(
                    f"{key} belongs to another topic of the same name ({uuid_to_text(replica.topic_id)}), so the node sets it aside at its start"
                )
    return lines


def _size(holdings: Holdings, topic_id: bytes) -> str:
    """Return the number of a topic's partitions, and the numbers of replicas that its partitions have."""
    count = holdings.count(topic_id)
    found = sorted({len(holdings.of(topic_id, number)) for number in holdings.partitions(topic_id)})
    replicas = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    partitions = "partition" if count == 1 else "partitions"
    return f"{count} {partitions} of {replicas} {'replica' if found == [1] else 'replicas'}"


def _unfound(holdings: Holdings, name: str, topic_id: bytes) -> list[str]:
    """Name the partitions of a topic that are on no disk, although partitions with higher numbers are."""
    count, found = holdings.count(topic_id), holdings.partitions(topic_id)
    missing = sorted({*range(count)} - {*found})
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:_NUMBERS_MAX])) + (", ..." if len(missing) > _NUMBERS_MAX else "")
    return [
        f"topic {name}: {len(missing)} of its {count} partitions ({shown}) are on no disk that was read, so they come back "
        "without records and without leaders"
    ]


def review(choice: Choice, nodes: Sequence[FoundNode]) -> list[tuple[str, list[str]]]:
    """List the things that the copy brings back, although the lost part of the log may have removed them.
    Returns (heading, texts) for each kind of thing, such as partitions or users.
    """
    chosen = choice.chosen
    if chosen is None:
        return []
    holdings, image = Holdings(nodes), chosen.image
    empty = [
        name
        for name, topic_id in sorted(choice.topics.items())
        if topic_id in image.topics_by_id and not holdings.is_held(topic_id)
    ]
    unheld = [
        f"{name}-{number}"
        for name, topic_id in sorted(choice.topics.items())
        if topic_id in image.topics_by_id and holdings.is_held(topic_id)
        for number in sorted(image.topics_by_id[topic_id].partitions)
        if not holdings.of(topic_id, number)
    ]
    access = image.access
    rows = [
        ("topics on no disk that was read", empty),
        ("partitions on no disk that was read", unheld),
        ("users", sorted({user for user, _ in access.scram_credentials})),
        ("rights", sorted(map(str, access.acls.values()))),
        (
            "delegation tokens",
            [f"{name} of {token.owner}" for name, token in sorted(access.delegation_tokens.items())],
        ),
        (
            "quotas",
            sorted(f"{_entity(of)}: {key}={value:g}" for (of, key), value in access.client_quotas.items()),
        ),
    ]
    return [(name, found) for name, found in rows if found]


def _entity(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {'by default' if name is None else name}" for kind, name in entity)
