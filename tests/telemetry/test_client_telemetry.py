"""Client instances, subscriptions and the table of clients: which are kept, for how long, and at what cost."""

from __future__ import annotations

from random import Random

import pytest

from odradek.data_plane.telemetry.client_telemetry import (
    SWEEP_SECONDS,
    Asker,
    ClientTelemetry,
    subscription_id,
)
from odradek.data_plane.telemetry.figures import SLOTS, Pushed
from odradek.data_plane.telemetry.known_clients import (
    CLIENTS_MAX,
    KEPT_SECONDS,
    NAME_LETTERS_MAX,
    OTHERS,
    ClientInstance,
    KnownClients,
)
from odradek.serving.steps import run_through
from odradek.wire.config_resources import RESOURCE_CLIENT_METRICS, RESOURCE_TOPIC
from odradek.wire.errors import ErrorCode

SENT = SLOTS[b"org.apache.kafka.producer.record.send.total"]
LATENCY_MAX = SLOTS[b"org.apache.kafka.producer.request.latency.max"]
LATENCY_AVG = SLOTS[b"org.apache.kafka.producer.request.latency.avg"]
PARTITIONS = SLOTS[b"org.apache.kafka.consumer.coordinator.assigned.partitions"]
OK = ErrorCode.NONE


class Broker:
    """A broker's telemetry, and its subscriptions by name."""

    def __init__(self, instances_max: int = 100) -> None:
        self.complaints: list[str] = []
        self.telemetry = ClientTelemetry(
            1000,
            lambda: Random(1).randbytes(16),
            lambda name, reason: self.complaints.append(name),
            instances_max,
        )
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.made: list[bytes] = []

    def subscribe(self, name: str, **values: str) -> None:
        """Store a subscription. Without values, remove it."""
        key = (RESOURCE_CLIENT_METRICS, name)
        self.configs[key] = {key.replace("_", "."): value for key, value in values.items()}
        self.telemetry.follow(self.configs, [key])

    def instance(self, number: int, now: float = 0.0, asker: Asker | None = None) -> ClientInstance:
        """Find or make the client instance that has this number as its id."""
        found = self.telemetry.instance(id_of(number), asker or client(), now, self.made.append)
        return run_through(found)

    def push(
        self, number: int, pushed: Pushed, now: float = 0.0, asker: Asker | None = None
    ) -> ClientInstance:
        """Handle a push of an instance."""
        instance = self.instance(number, now, asker)
        code = self.telemetry.refuse_push(instance, instance.subscription_id, 0, 1, now, is_terminating=False)
        assert code is OK
        self.telemetry.take(instance, asker or client(), pushed, now)
        return instance

    def figures(self, name: str = "c") -> dict[int, float]:
        """Return the figures of a client."""
        return dict(self.telemetry.clients.find("User:u", name, 0.0).figures())


def id_of(number: int) -> bytes:
    return number.to_bytes(16)


def client(client_id: str | None = "c", user: str = "u", **others: str) -> Asker:
    software = (others.get("library", "lib"), others.get("version", "1.0"))
    return Asker(f"User:{user}", client_id, software, others.get("address", "10.0.0.1"), 1234)


def test_without_a_subscription_nobody_pushes() -> None:
    """KIP-714: a client without a subscription only asks again, after five minutes."""
    instance = Broker().instance(5)
    assert (instance.metrics, instance.interval_ms) == ((), 300_000)


def test_all_brokers_have_the_same_id_for_a_subscription() -> None:
    """KIP-714: all brokers compute the same subscription id, so a client can push to another broker. The ids of Kafka
    4.3 are in tests/conformance/telemetry."""
    first, second = Broker(), Broker()
    first.subscribe("one", metrics="b,a", interval_ms="1000")
    second.subscribe("x", metrics="b")
    second.subscribe("y", metrics="a,b", interval_ms="1000")
    ids = {broker.instance(7).subscription_id for broker in (first, second)}
    assert ids == {subscription_id(id_of(7), ("a", "b"), 1000)}
    assert first.instance(8).subscription_id not in ids


def test_a_subscription_that_goes_holds_no_longer() -> None:
    """If a subscription is removed, a client's instance is replaced at its next request, so that the client notices."""
    broker = Broker()
    broker.subscribe("one", metrics="a")
    before = broker.instance(5)
    broker.subscribe("one")
    after = broker.instance(5)
    assert after is not before
    assert after.metrics == ()
    assert broker.instance(5) is after
    assert broker.made == [id_of(5)] * 2


def test_other_configurations_change_nothing() -> None:
    """A change of a topic's configuration leaves the instances as they are."""
    broker = Broker()
    before = broker.instance(5)
    broker.telemetry.follow({(RESOURCE_TOPIC, "t"): {"retention.ms": "1"}}, [(RESOURCE_TOPIC, "t")])
    assert broker.instance(5) is before


def test_patterns_that_cannot_be_read_hold_for_nobody() -> None:
    """A subscription with unreadable patterns applies to no client. If they were ignored, it would apply to all."""
    broker = Broker()
    broker.subscribe("bad", metrics="*", match="client_id=(?!a).*")
    assert broker.complaints == ["bad"]
    assert broker.instance(5).metrics == ()
    broker.subscribe("bad", metrics="*", match="client_id=c")
    assert broker.instance(5).metrics == ("*",)


def test_a_client_without_an_id_matches_no_pattern_of_ids() -> None:
    """A client whose client id is null matches no pattern of client ids."""
    broker = Broker()
    broker.subscribe("all", metrics="a", match="client_id=.*")
    assert broker.instance(5, asker=client(None)).metrics == ()


def test_the_silent_instance_gives_way() -> None:
    """The number of instances is bounded. The instance that is silent for longest is dropped, and its client gets a
    new one."""
    broker = Broker(instances_max=3)
    for number in (1, 2, 3):
        broker.instance(number)
    broker.instance(1)
    broker.instance(4)
    broker.made.clear()
    for number in (1, 3, 4):
        broker.instance(number)
    assert not broker.made
    assert broker.telemetry.statistics(0.0)["instances"] == 3
    broker.instance(2)
    assert broker.made == [id_of(2)]


def test_an_instance_that_is_silent_for_three_intervals_goes() -> None:
    """As in Kafka, an instance is dropped after three push intervals without a request, and after a minute at least."""
    broker = Broker()
    broker.subscribe("one", metrics="a", interval_ms="30000")
    broker.instance(1, 0.0)
    assert broker.telemetry.statistics(89.0)["instances"] == 1
    assert broker.telemetry.statistics(91.0 + SWEEP_SECONDS)["instances"] == 0
    assert broker.telemetry.statistics(91.0 + KEPT_SECONDS)["clients"] == 1
    assert broker.telemetry.statistics(91.0 + KEPT_SECONDS + 2 * SWEEP_SECONDS)["clients"] == 0


def test_the_last_push_outlives_its_instance() -> None:
    """A client pushes for the last time as it ends. Its figures are kept for some minutes."""
    broker = Broker()
    broker.push(1, Pushed({LATENCY_MAX: 2.0}, {SENT: 5.0}))
    broker.telemetry.forget(id_of(1), 1.0)
    assert broker.figures() == {SENT: 5.0, LATENCY_MAX: 2.0}
    assert broker.telemetry.statistics(1.0)["instances"] == 0
    broker.telemetry.forget(id_of(1), 2.0)


def test_instances_of_a_client_are_combined() -> None:
    """The figures of several programs with the same client id are added up, even after one has ended."""
    broker = Broker()
    broker.push(1, Pushed({LATENCY_MAX: 2.0, LATENCY_AVG: 1.0, PARTITIONS: 3.0}, {SENT: 5.0}))
    broker.push(2, Pushed({LATENCY_MAX: 4.0, LATENCY_AVG: 2.0, PARTITIONS: 4.0}, {SENT: 7.0}))
    broker.instance(3)
    assert broker.figures() == {LATENCY_MAX: 4.0, LATENCY_AVG: 1.5, PARTITIONS: 7.0, SENT: 12.0}
    broker.telemetry.forget(id_of(2), 1.0)
    assert broker.figures() == {LATENCY_MAX: 2.0, LATENCY_AVG: 1.0, PARTITIONS: 3.0, SENT: 12.0}


def test_a_change_of_subscription_keeps_the_figures() -> None:
    """After a new subscription a client gets a new instance, but its figures are kept until its next push."""
    broker = Broker()
    broker.push(1, Pushed({LATENCY_MAX: 2.0}, {SENT: 5.0}))
    broker.subscribe("one", metrics="a")
    broker.instance(1)
    assert broker.figures() == {LATENCY_MAX: 2.0, SENT: 5.0}


def test_an_instance_belongs_to_the_client_that_pushes_by_it() -> None:
    """Ids of instances are public. A push by another client under an instance's id does not change its figures."""
    broker = Broker()
    broker.push(1, Pushed({LATENCY_MAX: 2.0}, {SENT: 5.0}))
    broker.push(1, Pushed({LATENCY_MAX: 9.0}, {SENT: 9.0}), 400.0, client("stranger"))
    assert broker.figures() == {LATENCY_MAX: 2.0, SENT: 5.0}
    assert broker.figures("stranger") == {LATENCY_MAX: 9.0, SENT: 9.0}


def test_the_number_of_clients_is_bounded() -> None:
    """The number of clients is bounded. A user with endless client ids does not take the places of other users."""
    clients = KnownClients(10)
    kept = clients.find("User:quiet", "c", 0.0)
    kept.instances[b"1"] = ClientInstance(b"1", kept, (), 1, 1, 1)
    for number in range(100):
        made = clients.find("User:loud", str(number), 1.0)
        made.instances[b"1"] = ClientInstance(b"1", made, (), 1, 1, 1)
    assert len(clients) == 11
    assert clients.find("User:loud", "new", 2.0) is clients.find(*OTHERS, 2.0)
    assert clients.find("User:quiet", "c", 2.0) is kept
    another = clients.find("User:another", "c", 2.0)
    assert (another.principal, another.client_id) == ("User:another", "c")
    assert len(clients) == 11


def test_clients_that_have_ended_give_way_first() -> None:
    """If the table is full, the client that ended first is dropped."""
    clients = KnownClients(3)
    for number in range(3):
        clients.find("User:u", str(number), float(number))
    clients.find("User:u", "3", 3.0)
    assert {each.client_id for each in clients.all()} == {"1", "2", "3"}


def test_long_names_are_cut() -> None:
    """Client ids, which may have 32 KB, are cut in the table of a thousand clients."""
    found = KnownClients().find("User:" + "u" * 5000, "c" * 5000, 0.0)
    assert len(found.principal) == len(found.client_id) == NAME_LETTERS_MAX
    assert CLIENTS_MAX == 1_000


@pytest.mark.parametrize("seed", range(20))
def test_new_ids_are_ids_of_kafka(seed: int) -> None:
    """As in Kafka, no id of an instance begins with a dash, which a command line would take for an option."""
    random = Random(seed)
    telemetry = ClientTelemetry(1, lambda: random.randbytes(16), lambda name, reason: None)
    ids = {telemetry.new_instance_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(made[0] >> 2 != 62 for made in ids)
