"""Values that brokers derive from their images are checked: each stale value raises, and the rules are Kafka's."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from odradek.data_plane.broker import Broker
from odradek.data_plane.log.log_config import log_config
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.quotas.quota_levels import holding_quota
from odradek.security.acls.acl_index import AclIndex
from odradek.security.acls.rules import Acl
from odradek.security.salt_forms import SaltForms, form_of
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.derived.image_caches import ImageCaches, right_log_config
from sim.checks.folds.acl_rules import is_permitted
from sim.checks.folds.metadata_fold import Quota
from sim.checks.folds.quota_rules import quota_of
from sim.checks.folds.topic_settings import throttled_here, throttled_rate, topic_settings
from sim.checks.watch import Watch
from sim.history import SafetyViolation
from sim.machine.cluster_members import SETTINGS, Shape
from sim.machine.weather import Weather
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm.storm_plan import StormPlan

TEXTS = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "compression.type": ("producer", "gzip", "lz4", "zstd", "snappy", "uncompressed"),
    "compression.gzip.level": ("-1", "5"),
    "compression.lz4.level": ("9", "3"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "min.insync.replicas": ("1", "2"),
    "unclean.leader.election.enable": ("true", "FALSE"),
    "segment.ms": ("1000", "77"),
    "max.compaction.lag.ms": ("500", "5000"),
    "retention.ms": ("-1", "10"),
    "internal.segment.bytes": ("4000",),
    "min.cleanable.dirty.ratio": ("0.1", "0.9"),
    "flush.messages": ("1", "9223372036854775807"),
}
BROKER_TEXTS = {
    "log.cleanup.policy": ("compact",),
    "compression.type": ("zstd", "producer"),
    "log.message.timestamp.type": ("LogAppendTime",),
    "min.insync.replicas": ("2", "3"),
    "log.roll.hours": ("1",),
    "log.roll.ms": ("5", "6"),
    "log.retention.hours": ("2",),
    "log.retention.minutes": ("3",),
    "log.retention.ms": ("4", "-5"),
    "log.segment.bytes": ("2000000",),
    "log.flush.interval.ms": ("7",),
    "log.flush.scheduler.interval.ms": ("8",),
    "log.segment.delete.delay.ms": ("0",),
}


def drawn(random: Random, texts: dict[str, tuple[str, ...]], share: float) -> dict[str, str]:
    """Draw some keys, each with one of its possible texts."""
    return {key: random.choice(found) for key, found in texts.items() if random.random() < share}


@pytest.mark.parametrize("seed", range(150))
def test_the_settings_of_logs_follow_from_all_layers(seed: int) -> None:
    """From the same values in any layers, product and fold derive the same log configuration."""
    random = Random(seed)
    own = drawn(random, TEXTS, 0.3)
    layers = [drawn(random, BROKER_TEXTS, 0.25) for _ in range(3)]
    one_min_isr = random.random() < 0.5
    known = log_config(own, BrokerConfigLayers(layers[2], layers[0], layers[1], one_min_isr))
    right = right_log_config(topic_settings(own, layers, one_min_isr=one_min_isr))
    assert {name: getattr(known, name) for name in right} == right


def test_throttles_name_replicas_and_rates() -> None:
    """The throttled rate comes from the layer that takes precedence. A list of throttled replicas has PARTITION:BROKER
    pairs, or `*` for all."""
    layers = [{}, {"leader.replication.throttled.rate": "5"}, {"leader.replication.throttled.rate": "6"}]
    assert throttled_rate("leader", layers) == 5
    assert throttled_rate("follower", layers) is None
    own = {
        "leader.replication.throttled.replicas": "0:1, 1:2",
        "follower.replication.throttled.replicas": "*",
    }
    assert throttled_here("leader", own, 1, 0)
    assert not throttled_here("leader", own, 1, 1)
    assert throttled_here("follower", own, 9, 9)
    assert not throttled_here("leader", {}, 1, 0)


@pytest.mark.parametrize("seed", range(100))
def test_quotas_hold_by_their_rank(seed: int) -> None:
    """Product and fold choose the same quota, whichever combination of user and client id has one."""
    random = Random(seed)
    quotas: dict[Quota, float] = {}
    for number in range(random.randrange(6)):
        user, client = random.choice(["ann", "", None]), random.choice(["app", None])
        entity = random.choice(
            [(("client-id", client), ("user", user)), (("user", user),), (("client-id", client),)]
        )
        quotas[entity, "producer_byte_rate"] = float(number)
    for user_name in ("ann", "bob", ""):
        for client_id in ("app", "other", ""):
            found = holding_quota(quotas, "producer_byte_rate", user_name, client_id)
            expected = quota_of(quotas, "producer_byte_rate", user_name, client_id)
            assert (None if found is None else (found.value, *found.sharers)) == expected


@pytest.mark.parametrize("seed", range(100))
def test_rules_decide_one_by_one(seed: int) -> None:
    """Product and fold give the same permissions for any set of ACLs."""
    random = Random(seed)
    rules = [
        (
            *(2, random.choice(["a", "ab", "*"]), random.choice([3, 4])),
            *(random.choice(["User:x", "User:*"]), random.choice(["h", "*"])),
            *(random.choice([2, 3, 4, 8, 10, 11]), random.choice([2, 3, 3])),
        )
        for _ in range(random.randrange(5))
    ]
    index = AclIndex.of({bytes([number]): Acl(*rule) for number, rule in enumerate(rules)})
    for name in ("a", "ab", "abc", "b"):
        for operation in (3, 4, 8, 10, 11):
            decisive = index.find("User:x", "h", operation, 2, name).rule
            granted = decisive is not None and decisive.permission_type == 3
            assert granted == is_permitted(rules, "User:x", "h", operation, 2, name), (rules, name, operation)


class Quiet:
    """A quiet cluster. At its end, `tamper` makes one derived value stale after the other."""

    def __init__(self) -> None:
        plan, shape = StormPlan(2.0, ()), Shape(settings=dict(SETTINGS))
        self.scenario = ClusterScenario(1, shape=shape, plan=plan, weather=Weather())
        watch = Watch(self.scenario.cluster)
        self.check: ImageCaches = watch.image_caches
        self.processes = watch.processes
        self.seen: list[str] = []

    def run(self) -> None:
        """Run the scenario with `tamper` in place of the storm's end."""
        storm = self.scenario._storm.run

        async def tampered() -> None:
            await storm()
            self.tamper()

        vars(self.scenario._storm)["run"] = tampered
        self.scenario.run()

    def sees(self, complaint: str) -> None:
        """Assert that a check of all brokers raises this complaint."""
        with pytest.raises(SafetyViolation, match=f"caches of metadata: .*{complaint}"):
            self.check.look_at_all([])
        self.seen.append(complaint)

    def put(self, bearer: object, name: str, value: object, complaint: str) -> None:
        """Set an attribute, assert that the check complains, and restore the attribute."""
        before = getattr(bearer, name)
        setattr(bearer, name, value)
        self.sees(complaint)
        setattr(bearer, name, before)
        self.check.look_at_all([])

    def tamper(self) -> None:
        """Make one derived value stale after the other, all at one moment of the run."""
        self.check.look_at_all([])
        assert self.check.logs_seen > 0
        broker = next(node.broker for _, node in self.processes.living() if node.broker is not None)
        self.tamper_with_logs(broker)
        self.tamper_with_replicas(broker)
        self.tamper_with_broker(broker)

    def tamper_with_logs(self, broker: Broker) -> None:
        topic = broker.topics["replicated"]
        log = topic.partitions[0].log
        for name, value in (
            ("retention_ms", 1),
            ("cleanup_policy", ("compact",)),
            ("max_message_bytes", 1),
            ("min_insync_replicas", 7),
            ("flush_messages", 1),
            ("segment_bytes", 1),
            ("compression_type", "gzip"),
        ):
            self.put(log, "config", attrs.evolve(log.config, **{name: value}), f"replicated-0 has {name}")
        self.put(topic, "config", attrs.evolve(log.config, retention_ms=1), "replicated has retention_ms")
        self.put(topic.partitions[0], "flushes", not topic.partitions[0].flushes, "replicated-0 flushes")

    def tamper_with_replicas(self, broker: Broker) -> None:
        topic = broker.topics["replicated"]
        partition = topic.partitions.pop(0)
        self.sees("replicated-0 is placed here, and not hosted")
        topic.partitions[0] = partition
        topic.partitions[99] = partition
        self.sees("replicated-0 is hosted, and placed elsewhere")
        del topic.partitions[99]
        image = partition.image
        assert image is not None
        self.put(partition, "image", attrs.evolve(image, leader_epoch=77), "replicated-0 goes by")
        other = attrs.evolve(image, directories=tuple(bytes([9]) * 16 for _ in image.replicas))
        whole: MetadataImage = broker.image
        named = whole.topics_by_id[topic.topic_id]
        moved = attrs.evolve(named, partitions={**named.partitions, 0: other})
        key = TopicIdPartition(topic.topic_id, 0)
        assert key not in broker.assignments.pending
        fold = self.check.metadata.replay(next(self.processes.living())[0], whole)
        assert fold is not None
        self.check.metadata.newest = fold
        fold.topics[topic.topic_id].partitions[0].directories = other.directories
        changed = whole.topics_by_id.changed({topic.topic_id: moved})
        partition.image, broker.newest.image = other, attrs.evolve(whole, topics_by_id=changed)
        self.sees("replicated-0 lies in")
        partition.image, broker.newest.image = image, whole

    def tamper_with_broker(self, broker: Broker) -> None:
        throttle = broker.replication.leader_throttle
        self.put(throttle, "_rate", 5, "the rate of leaders is 5")
        topic = broker.topics["replicated"]
        self.put(throttle, "_topics", {topic.topic_id: None}, "is throttled as leader: True")
        log_dir = broker.log_dirs[0]
        context = attrs.evolve(log_dir.context, producer_id_expiration_ms=1)
        self.put(log_dir, "context", context, "forgets producers after 1 ms")
        self.put(broker.placement, "cordoned", (log_dir.directory_id,), "cordoned directories")
        quota = {((("user", "ann"),), "producer_byte_rate"): 5.0}
        self.put(broker.quotas, "_quotas", quota, "quotas .*ann")
        self.put(broker.quotas, "is_charging", True, "charging True")
        access = broker.image.access
        acl = {b"1" * 16: Acl(2, "a", 3, "User:x", "*", 3, 3)}
        forms = SaltForms().changed((), [(1, form_of(b"salt", 4096))])
        for name, value, complaint in (
            ("acl_index", AclIndex.of(acl), "1 rules decide, and its image has 0"),
            ("acl_ids", access.acl_ids.changed({acl[b"1" * 16]: b"1"}), "the ids of its rules differ"),
            ("salt_forms", forms, "the forms of salts differ"),
        ):
            stale = attrs.evolve(broker.image, access=attrs.evolve(access, **{name: value}))
            self.put(broker.newest, "image", stale, complaint)


def test_each_stale_result_raises() -> None:
    """Each derived value is made stale once, and the check finds each one. The run itself passes."""
    quiet = Quiet()
    quiet.run()
    assert len(quiet.seen) == 22


def test_a_look_skips_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker is compared again only if it has a new image or runs as a new process."""
    quiet = Quiet()
    looked: list[str] = []
    found: list[tuple[str, object]] = []
    monkeypatch.setattr(quiet.check, "_brokers", lambda: iter(found))
    monkeypatch.setattr(
        "sim.checks.derived.image_caches._differences", lambda *_, is_late: looked.append("") or iter(())
    )
    found.append(("node-1", _Imaged(MetadataImage()), False))
    quiet.check.look([])
    quiet.check.look([])
    assert len(looked) == 1
    found[0] = ("node-1", _Imaged(MetadataImage()), False)
    quiet.check.look([])
    assert len(looked) == 2


@attrs.define(eq=False)
class _Imaged:
    """A stub broker that has only an image."""

    image: MetadataImage
