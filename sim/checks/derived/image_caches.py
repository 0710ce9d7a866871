"""Check of cached results: what each broker derives from its metadata image must agree with that image. PURE.

A broker caches results of its image, so that requests find them quickly. Between two steps of the broker's event
loop, each cached result must follow from the image. This holds for images from a snapshot and for images that were
built record by record. These are checked:

1. The configuration of each topic and each hosted log, and values computed from it.
2. The hosted replicas, their metadata and their directories. A replica may be waiting for its log, its disk, or the
   controller's confirmation of its directory.
3. The rates and replicas of throttled replication, the cordoned directories, and the expiration time of idle
   producers.
4. The tables of quotas, and the quota accounts that were used since the last change.
5. The decisions of the ACL index, and how many users have each form of SCRAM salt (`odradek.security.salt_forms`).

The expected results come from `sim.checks.folds`. `look` skips a broker whose present image was already compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage
from odradek.security.salt_forms import form_of
from odradek.wire.topic_partition import TopicIdPartition, TopicPartition
from sim.checks.derived.metadata_replay import MetadataReplay
from sim.checks.folds.acl_rules import ALL as ALL_OPERATIONS
from sim.checks.folds.acl_rules import ANY_HOST, ANY_PRINCIPAL, READ, Rule, is_permitted
from sim.checks.folds.metadata_fold import MetadataFold
from sim.checks.folds.quota_rules import quota_of
from sim.checks.folds.topic_settings import (
    LONG_MAX,
    Layers,
    Setting,
    throttled_here,
    throttled_rate,
    topic_settings,
)
from sim.checks.watched import Hosted, Processes, partition_name
from sim.history import SafetyViolation

__all__ = ["ImageCaches", "right_log_config"]

SHARE = 0.1
"""The probability that a call of `look` compares a broker whose image is new."""
RULES_ASKED = 8
"""How many ACLs are tested when a broker is compared."""
BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2
ELIGIBLE_LEADERS = "eligible.leader.replicas.version"
CODECS = {"producer": -1, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}
"""Default compression levels by codec. In the comparison, None stands for a codec's default level."""
CORDONED, ALL_DIRECTORIES = "cordoned.log.dirs", "*"
LOST_DIRECTORY = bytes(15) + b"\x01"
IP = "ip"
REQUEST_PERCENTAGE = "request_percentage"
DAY_MS = 86_400_000


class ImageCaches:
    """The check of cached results on all living brokers."""

    def __init__(self, processes: Processes, metadata: MetadataReplay) -> None:
        """Create the check. `metadata` is the check that follows the metadata log."""
        self._processes = processes
        self.metadata = metadata
        self._random = Random(f"{processes.world.seed}/image caches")
        self._seen: dict[str, tuple[Broker, MetadataImage]] = {}
        self.looks = self.logs_seen = self.rules_seen = self.accounts_seen = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Compare each new process, and each broker with a new image with probability `SHARE`. Raises
        `SafetyViolation`.
        """
        for name, broker, is_late in self._brokers():
            seen = self._seen.get(name)
            if seen is not None and seen[1] is broker.image and seen[0] is broker:
                continue
            if seen is None or seen[0] is not broker or self._random.random() < SHARE:
                self._look_at(name, broker, is_late)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Compare all brokers with their images. Raises `SafetyViolation`."""
        for name, broker, is_late in self._brokers():
            self._look_at(name, broker, is_late)

    def _brokers(self) -> Iterator[tuple[str, Broker, bool]]:
        """Yield each broker that already applies images, because its logs are open: its name, the broker, and whether
        the metadata log on its machine has records beyond its image.
        """
        for member, node in self._processes.living():
            if node.broker is not None and node.metadata is not None and node._lifecycle is not None:
                end_offset = node.metadata.quorum.decisions.log_end_offset
                yield member.name, node.broker, end_offset > node.broker.image.offset + 1

    def _look_at(self, name: str, broker: Broker, is_late: bool) -> None:
        self._seen[name] = (broker, broker.image)
        self.looks += 1
        for wrong in _differences(self, broker, self._random, is_late=is_late):
            raise SafetyViolation(f"caches of metadata: {name} at offset {broker.image.offset}: {wrong}")


def _differences(check: ImageCaches, broker: Broker, random: Random, *, is_late: bool) -> Iterator[str]:
    """Yield each difference between the cached results and the image, in words."""
    layers = _layers(broker)
    yield from _wrong_logs(check, broker, layers)
    yield from _wrong_replicas(broker, None if is_late else check.metadata.newest)
    yield from _wrong_throttles(broker, layers)
    yield from _wrong_directories(broker, layers)
    yield from _wrong_quotas(check, broker)
    yield from _wrong_access(check, broker.image, random)


def _layers(broker: Broker) -> Layers:
    configs = broker.image.configs
    own: Mapping[str, str] = configs.get((BROKER_RESOURCE, str(broker.node_id)), {})
    of_all: Mapping[str, str] = configs.get((BROKER_RESOURCE, ""), {})
    return own, of_all, broker.settings.config_layers.static


# --- configurations


def right_log_config(settings: Mapping[str, Setting]) -> dict[str, object]:
    """Compute the expected attributes of a log's configuration from the topic's settings by key."""
    right: dict[str, object] = {key.replace(".", "_"): value for key, value in settings.items()}
    policy, codec = settings["cleanup.policy"], str(settings["compression.type"])
    assert isinstance(policy, tuple)
    is_compacted = "compact" in policy
    segment_ms, lag_ms = settings["segment.ms"], settings["max.compaction.lag.ms"]
    assert isinstance(segment_ms, int)
    assert isinstance(lag_ms, int)
    level = settings.get(f"compression.{codec}.level")
    right["is_compacted"] = is_compacted
    right["deletes_by_retention"] = "delete" in policy
    right["roll_ms"] = min(segment_ms, lag_ms) if is_compacted else segment_ms
    right["uses_append_time"] = settings["message.timestamp.type"] == "LogAppendTime"
    right["codec"] = CODECS[codec]
    right["codec_level"] = None if level == LEVELS.get(codec) else level
    return right


def _wrong_logs(check: ImageCaches, broker: Broker, layers: Layers) -> Iterator[str]:
    image = broker.image
    one_min_isr = image.features.get(ELIGIBLE_LEADERS, 0) >= 1
    verifies = _newest(layers, "transaction.partition.verification.enable", "true").strip().lower() == "true"
    known: dict[tuple[tuple[str, str], ...], Mapping[str, object]] = {}
    for hosted in broker.topics_by_id.values():
        own: Mapping[str, str] = image.configs.get((TOPIC_RESOURCE, hosted.name), {})
        key = tuple(sorted(own.items()))
        if key not in known:
            settings = topic_settings(own, layers, one_min_isr=one_min_isr)
            known[key] = {**right_log_config(settings), "verifies_transactions": verifies}
        yield from _wrong_config(hosted.name, hosted.config, known[key])
        for partition in hosted.partitions.values():
            check.logs_seen += 1
            config, what = partition.log.config, partition_name(partition)
            if config is not hosted.config:
                yield from _wrong_config(what, config, known[key])
            if partition.flushes != (config.flush_messages < LONG_MAX):
                yield f"{what} flushes: {partition.flushes}"


def _wrong_config(what: str, config: LogConfig, right: Mapping[str, object]) -> Iterator[str]:
    for attribute, value in right.items():
        known = getattr(config, attribute)
        if known != value:
            yield f"{what} has {attribute} {known}, and its image says {value}"


def _newest(layers: Layers, key: str, default: str) -> str:
    return next((layer[key] for layer in layers if key in layer), default)


# --- replicas


def _wrong_replicas(broker: Broker, newest: MetadataFold | None) -> Iterator[str]:
    image = broker.image
    placed: dict[TopicIdPartition, PartitionImage] = {}
    for topic_id, topic in image.topics_by_id.items():
        for index, partition in topic.partitions.items():
            if broker.node_id in partition.replicas:
                placed[TopicIdPartition(topic_id, index)] = partition
    for topic_id, hosted in broker.topics_by_id.items():
        for index, replica in hosted.partitions.items():
            key = TopicIdPartition(topic_id, index)
            named = placed.pop(key, None)
            if not replica.log.home.is_unsettled:
                yield from _wrong_replica(broker, newest, key, replica, named)
        if hosted.partitions and broker.topics.get(hosted.name) is not hosted:
            yield f"topic {hosted.name} is not found by its name"
    if _some_disk_is_away(broker):
        return
    for key in placed:
        if not _may_wait(broker, key):
            yield f"{image.topics_by_id[key.topic_id].name}-{key.partition} is placed here, and not hosted"


def _wrong_replica(
    broker: Broker,
    newest: MetadataFold | None,
    key: TopicIdPartition,
    replica: Partition,
    named: PartitionImage | None,
) -> Iterator[str]:
    what, log = partition_name(replica), replica.log
    if named is None:
        yield f"{what} is hosted, and placed elsewhere"
        return
    # The answer to an AlterPartition request may overtake its record, so the replica may be ahead of the image.
    if replica.image != named and replica.partition_epoch <= named.partition_epoch:
        yield f"{what} goes by {replica.image}, and its image says {named}"
    owner = log.owner
    if not isinstance(owner, LogDir) or owner.offline_reason is not None:
        return
    if owner.logs.get(TopicPartition(log.topic, log.partition)) is not log:
        yield f"{what} has another log in {owner.path}"
    directory = named.directories[named.replicas.index(broker.node_id)]
    if directory in (owner.directory_id, LOST_DIRECTORY) or key in broker.assignments.pending:
        return
    move = broker.moves.moves.get(TopicPartition(log.topic, log.partition))
    if (move is None or move.target.directory_id != directory) and not _is_confirmed(
        broker, newest, key, owner
    ):
        yield f"{what} lies in {owner.path} ({owner.directory_id.hex()}), and its image says {directory.hex()}"


def _is_confirmed(
    broker: Broker, newest: MetadataFold | None, key: TopicIdPartition, log_dir: LogDir
) -> bool:
    """True if the newest metadata name this directory for the replica, or no longer have the replica. Then the
    broker's image is only out of date.

    `newest` is None if the broker's machine has metadata records beyond the broker's image. They may confirm the
    directory, although no node has published them yet.
    """
    if newest is None:
        return True
    topic = newest.topics.get(key.topic_id)
    there = None if topic is None else topic.partitions.get(key.partition)
    if there is None or broker.node_id not in there.replicas:
        return True
    return there.directories[there.replicas.index(broker.node_id)] == log_dir.directory_id


def _may_wait(broker: Broker, key: TopicIdPartition) -> bool:
    """True if a replica may be missing, because its log is still to be created or needs room on a disk."""
    hosting = broker.hosting
    return key in broker.maker or key in hosting._without_room or key in hosting._refused


def _some_disk_is_away(broker: Broker) -> bool:
    """True if a log directory is offline, hangs, or is about to be closed."""
    placement = broker.placement
    usable = [each for each in placement.usable if each.is_served]
    return bool(placement.unavailable) or len(usable) < len(placement.log_dirs)


# --- broker settings


def _wrong_throttles(broker: Broker, layers: Layers) -> Iterator[str]:
    for side, throttle in (
        ("leader", broker.replication.leader_throttle),
        ("follower", broker.replication.follower_throttle),
    ):
        rate = throttled_rate(side, layers)
        if throttle._rate != rate:
            yield f"the rate of {side}s is {throttle._rate}, and its image says {rate}"
        for topic_id, hosted in broker.topics_by_id.items():
            own: Mapping[str, str] = broker.image.configs.get((TOPIC_RESOURCE, hosted.name), {})
            for index in hosted.partitions:
                slowed = throttled_here(side, own, broker.node_id, index)
                if throttle.applies_to(topic_id, index) != slowed:
                    yield f"{hosted.name}-{index} is throttled as {side}: {not slowed}, and its image says {slowed}"


def _wrong_directories(broker: Broker, layers: Layers) -> Iterator[str]:
    age_ms = int(_newest(layers, "producer.id.expiration.ms", str(DAY_MS)))
    for log_dir in broker.log_dirs:
        known = log_dir.context.producer_id_expiration_ms
        if known != age_ms:
            yield f"{log_dir.path} forgets producers after {known} ms, and its image says {age_ms}"
    paths = [each.strip() for each in _newest(layers, CORDONED, "").split(",")]
    named = [each for each in broker.log_dirs if each.path in paths or ALL_DIRECTORIES in paths]
    cordoned = sorted(each.directory_id for each in named)
    if list(broker.placement.cordoned) != cordoned:
        yield f"cordoned directories {broker.placement.cordoned}, and its image says {cordoned}"


# --- quotas


def _wrong_quotas(check: ImageCaches, broker: Broker) -> Iterator[str]:
    quotas, known = broker.image.access.client_quotas, broker.quotas
    if known._quotas != quotas:
        yield f"quotas {known._quotas}, and its image says {quotas}"
    of_clients = {key for entity, key in quotas if entity[:1] != () and entity[0][0] != IP}
    if known.is_charging != bool(of_clients) or known.charges_requests != (REQUEST_PERCENTAGE in of_clients):
        yield f"charging {known.is_charging}, {known.charges_requests}, and its image has {sorted(of_clients)}"
    for (entity, _), rate in quotas.items():
        if entity[:1] and entity[0][0] == IP:
            address = entity[0][1]
            held = known.addresses._default if address is None else known.addresses.rate(address)
            if held is None or held > rate:
                yield f"address {address} opens {held} connections a second, and its image says {rate}"
    for (user, client_id), account in known.accounts():
        if account.is_overflow or account.change != known._changes:
            continue
        check.accounts_seen += 1
        found = quota_of(quotas, account.key, user, client_id)
        if found != (account.holding.value, user, client_id):
            yield f"{account.key} of {user!r}, {client_id!r} is {account.holding.value}, and its image says {found}"


# --- access


def _wrong_access(check: ImageCaches, image: MetadataImage, random: Random) -> Iterator[str]:
    access = image.access
    acls = list(access.acls.values())
    if len(access.acl_index) != len(acls):
        yield f"{len(access.acl_index)} rules decide, and its image has {len(acls)}"
    rules: list[Rule] = [_rule(attrs.astuple(acl)) for acl in acls]
    for rule in random.sample(rules, min(RULES_ASKED, len(rules))):
        principal = "User:somebody" if rule[3] == ANY_PRINCIPAL else rule[3]
        host = "somewhere" if rule[4] == ANY_HOST else rule[4]
        operation = READ if rule[5] == ALL_OPERATIONS else rule[5]
        for name in (rule[1], f"{rule[1]}x", rule[1][:-1]):
            check.rules_seen += 1
            decisive = access.acl_index.find(principal, host, operation, rule[0], name).rule
            may = decisive is not None and decisive.permission_type != 2
            if may != is_permitted(rules, principal, host, operation, rule[0], name):
                yield f"{principal} at {host} may do {operation} to {rule[0]} {name!r}: {may}, and its rules say otherwise"
    if {acl: acl_id for acl_id, acl in access.acls.items()}.keys() != set(access.acl_ids):
        yield "the ids of its rules differ from its image"
    counts: dict[tuple[int, object], int] = {}
    for (_, mechanism), known in access.scram_credentials.items():
        form = (mechanism, form_of(known.salt, known.iterations))
        counts[form] = counts.get(form, 0) + 1
    if dict(access.salt_forms._counts) != counts:
        yield "the forms of salts differ from its image"


def _rule(fields: tuple[int, str, int, str, str, int, int]) -> Rule:
    return fields
