"""Comparison of a metadata image with the model of the metadata log. PURE.

Only primary values are compared: other checks cover derived state, such as indexes and caches. Lists whose order
has no meaning, such as a broker's directories, are sorted first.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from odradek.metadata_quorum.image.metadata_image import (
    BrokerImage,
    ControllerImage,
    FeatureRange,
    ListenerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from sim.checks.folds.metadata_fold import (
    BrokerFold,
    ControllerFold,
    MetadataFold,
    PartitionFold,
    Resource,
    Touched,
)

__all__ = ["metadata_difference"]

BROKER_RESOURCE = 4
TROUBLED = "odradek.troubled.log.dirs"
_LISTS = ("log_dirs", "cordoned_log_dirs")


def metadata_difference(
    fold: MetadataFold, image: MetadataImage, touched: Touched | None = None
) -> str | None:
    """Describe the first difference between the model and the image; None if they are equal. With `touched`, compare
    only these entries and the small parts of the state.
    """
    return next(_differences(fold, image, touched), None)


def _differences(fold: MetadataFold, image: MetadataImage, touched: Touched | None) -> Iterator[str]:
    for name in ("offset", "epoch", "next_producer_id", "features"):
        if getattr(fold, name) != getattr(image, name):
            yield f"{name} {getattr(image, name)}, and the log says {getattr(fold, name)}"
    if touched is None:
        touched = _everything(fold, image)
        yield from _wrong_names(fold, image)
    for topic_id in touched.topics:
        yield from _topic(fold, image, topic_id)
    for broker_id in touched.brokers:
        known = image.brokers.get(broker_id)
        if known is not None and known.broker_id != broker_id:
            yield f"broker {broker_id} is {known.broker_id}"
        yield from _node(f"broker {broker_id}", known, fold.brokers.get(broker_id))
    for node_id in touched.controllers:
        controller = image.controllers.get(node_id)
        yield from _node(f"controller {node_id}", controller, fold.controllers.get(node_id))
    for resource in touched.configs:
        yield from _config(fold, image, resource)
    yield from _access(fold, image, touched)


def _everything(fold: MetadataFold, image: MetadataImage) -> Touched:
    access = image.access
    configs = {**dict.fromkeys(image.configs), **dict.fromkeys(image.unreadable_configs)}
    return Touched(
        {**dict.fromkeys(fold.topics), **dict.fromkeys(image.topics_by_id)},
        {**dict.fromkeys(fold.brokers), **dict.fromkeys(image.brokers)},
        {**dict.fromkeys(fold.controllers), **dict.fromkeys(image.controllers)},
        {**dict.fromkeys(fold.configs), **configs},
        {**dict.fromkeys(fold.acls), **dict.fromkeys(access.acls)},
        {**dict.fromkeys(fold.credentials), **dict.fromkeys(access.scram_credentials)},
        {**dict.fromkeys(fold.tokens), **dict.fromkeys(access.delegation_tokens)},
        {**dict.fromkeys(fold.quotas), **dict.fromkeys(access.client_quotas)},
    )


def _wrong_names(fold: MetadataFold, image: MetadataImage) -> Iterator[str]:
    """Check the names of topics: each name leads to the right topic, and the list of colliding names is complete."""
    if sorted(image.topics) != sorted(fold.ids):
        yield f"topics by name {sorted(image.topics)}, and the log says {sorted(fold.ids)}"
    colliding: dict[str, list[str]] = {}
    for name in sorted(fold.ids):
        if "." in name or "_" in name:
            colliding.setdefault(name.replace(".", "_"), []).append(name)
    known = {key: list(names) for key, names in image.colliding_names.items()}
    if known != colliding:
        yield f"colliding names {known}, and the log says {colliding}"


def _topic(fold: MetadataFold, image: MetadataImage, topic_id: bytes) -> Iterator[str]:
    known: TopicImage | None = image.topics_by_id.get(topic_id)
    there = fold.topics.get(topic_id)
    if known is None or there is None:
        if known is not None:
            yield f"topic {known.name} ({topic_id.hex()}), and the log has removed it"
        if there is not None:
            yield f"no topic {there.name} ({topic_id.hex()}), and the log has it"
        return
    if (known.name, known.topic_id) != (there.name, topic_id) or image.topics.get(there.name) is not known:
        yield f"topic {known.name} ({topic_id.hex()}), and the log calls it {there.name}"
    if list(known.partitions) != list(range(len(there.partitions))):
        yield f"topic {there.name} with the partitions {list(known.partitions)}, and the log has {len(there.partitions)}"
        return
    for number, partition in there.partitions.items():
        yield from _wrong_fields(f"{there.name}-{number}", known.partitions[number], partition)


def _node(
    what: str, known: BrokerImage | ControllerImage | None, there: BrokerFold | ControllerFold | None
) -> Iterator[str]:
    if known is not None and there is not None:
        yield from _wrong_fields(what, known, there)
    elif known is not None or there is not None:
        yield f"{what} is {'unknown' if known is None else 'registered'}, and the log says otherwise"


def _wrong_fields(
    what: str,
    known: PartitionImage | BrokerImage | ControllerImage,
    there: PartitionFold | BrokerFold | ControllerFold,
) -> Iterator[str]:
    for name in there.__slots__:
        if name == "__weakref__":
            continue
        value, right = getattr(known, name), getattr(there, name)
        if name == "listeners":
            value = _listeners(value)
        elif name == "features":
            value = _ranges(value)
        elif name in _LISTS:
            value = sorted(value)
        if value != right:
            yield f"{what} with {name} {value!r}, and the log says {right!r}"


def _listeners(listeners: tuple[ListenerImage, ...]) -> list[tuple[str, str, int, int]]:
    return sorted((each.name, each.host, each.port, each.security_protocol) for each in listeners)


def _ranges(features: tuple[FeatureRange, ...]) -> list[tuple[str, int, int]]:
    return sorted((each.name, each.min_level, each.max_level) for each in features)


def _config(fold: MetadataFold, image: MetadataImage, resource: Resource) -> Iterator[str]:
    """Compare the configuration of a resource. A node uses the newest value that it can parse."""
    there = fold.configs.get(resource, {})
    values: dict[str, str] = image.configs.get(resource, {})
    unreadable: dict[str, str] = image.unreadable_configs.get(resource, {})
    for key in sorted({*there, *values, *unreadable}):
        texts = there.get(key)
        if texts is None:
            yield f"configuration {resource} with {key}, and the log says nothing of it"
        elif key not in unreadable:
            if values.get(key) != texts[-1]:
                yield f"configuration {resource} with {key}={values.get(key)!r}, and the log says {texts[-1]!r}"
        elif unreadable[key] != texts[-1] or values.get(key, texts[0]) not in texts:
            yield f"configuration {resource} with {key}={unreadable[key]!r}, unreadable, and the log says {texts}"
    if resource[0] == BROKER_RESOURCE:
        right = _troubled(there.get(TROUBLED))
        listed = image.troubled_directories.get(resource[1], ())
        if listed != right:
            yield f"broker {resource[1]} with troubled directories {listed}, and the log says {right}"


def _troubled(texts: list[str] | None) -> tuple[bytes, ...]:
    """List the ids of the directories that a broker reports as full or hung."""
    entries = texts[-1].split(",") if texts else []
    ids = [entry.strip().partition(":")[0] for entry in entries if entry.strip()]
    return tuple(base64.urlsafe_b64decode(f"{each}==") for each in ids)


def _access(fold: MetadataFold, image: MetadataImage, touched: Touched) -> Iterator[str]:
    access = image.access
    for acl_id in touched.acls:
        acl = access.acls.get(acl_id)
        rule = acl and (
            *(acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal),
            *(acl.host, acl.operation, acl.permission_type),
        )
        if rule != fold.acls.get(acl_id):
            yield f"rule {acl_id.hex()} {rule}, and the log says {fold.acls.get(acl_id)}"
    for user in touched.credentials:
        known = access.scram_credentials.get(user)
        secret = known and (known.salt, known.stored_key, known.server_key, known.iterations)
        if secret != fold.credentials.get(user):
            yield f"another credential of {user} than the log"
    for token_id in touched.tokens:
        token = access.delegation_tokens.get(token_id)
        fields = token and (
            *(token.owner, token.requester, token.renewers),
            *(token.issue_timestamp, token.max_timestamp, token.expiration_timestamp),
        )
        if fields != fold.tokens.get(token_id):
            yield f"token {token_id} {fields}, and the log says {fold.tokens.get(token_id)}"
    for quota in touched.quotas:
        if access.client_quotas.get(quota) != fold.quotas.get(quota):
            yield f"quota {quota} {access.client_quotas.get(quota)}, and the log says {fold.quotas.get(quota)}"
