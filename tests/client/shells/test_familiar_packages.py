"""The table of familiar names compared with the installed clients: each name is really one of theirs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

from odradek.client.core.familiar_names import (
    AIOKAFKA,
    CONFLUENT,
    FAMILIAR_ARGUMENTS,
    FAMILIAR_KEYS,
    FAMILIAR_METHODS,
    KAFKA_PYTHON,
    FamiliarKey,
    FamiliarMethod,
)

CLASSES: dict[str, dict[str, Any]] = {
    KAFKA_PYTHON: {
        "Producer": kafka.KafkaProducer,
        "Consumer": kafka.KafkaConsumer,
        "Admin": kafka.KafkaAdminClient,
    },
    AIOKAFKA: {
        "Producer": aiokafka.AIOKafkaProducer,
        "Consumer": aiokafka.AIOKafkaConsumer,
        "Admin": aiokafka.admin.AIOKafkaAdminClient,
    },
    CONFLUENT: {
        "Producer": confluent_kafka.Producer,
        "Consumer": confluent_kafka.Consumer,
        "Admin": confluent_kafka.admin.AdminClient,
    },
}
BEFORE_3 = {
    "api.version.auto.timeout.ms",
    "legacy.iterator",
    "sock.chunk.bytes",
    "bootstrap.topics.filter",
    "list_consumer_groups",
    "describe_consumer_groups",
    "delete_consumer_groups",
    "list_consumer_group_offsets",
}
"""Names that only kafka-python 2 has, whose users still know them. A newer release is installed."""
CALLBACKS = {"dr.cb", "on.delivery", "on.commit", "error.cb", "stats.cb", "throttle.cb", "oauth.cb", "logger"}
"""Keys of confluent-kafka itself, which have underscores. All of its other keys are librdkafka's."""


def keywords(client: str) -> set[str]:
    """Return the keyword arguments of a client's classes."""
    found: set[str] = set()
    for each in CLASSES[client].values():
        found |= set(inspect.signature(each.__init__).parameters)
        found |= set(getattr(each, "DEFAULT_CONFIG", ()))
    return found


def is_of_librdkafka(name: str) -> bool:
    """True if a client of librdkafka accepts this key or fails for another reason than an unknown key."""
    made: tuple[Callable[[dict[str, Any]], Any], ...] = (confluent_kafka.Producer, confluent_kafka.Consumer)
    for make in made:
        for key in (name, name.replace(".", "_")):
            try:
                make({"group.id": "g", key: print if name in CALLBACKS else "1"})
            except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
                if "No such configuration property" in str(error):
                    continue
            return True
    return False


def keys_by_client() -> Iterator[Any]:
    """Yield each key of the table with each client that has it."""
    for key in FAMILIAR_KEYS:
        for client in key.clients:
            yield pytest.param(key, client, id=f"{client}-{key.name}")


@pytest.mark.parametrize(("key", "client"), list(keys_by_client()))
def test_a_key_is_one_of_the_clients(key: FamiliarKey, client: str) -> None:
    """The other client has each key of the table. Keys have dots in librdkafka, and underscores elsewhere."""
    if client == CONFLUENT:
        assert is_of_librdkafka(key.name)
    else:
        is_old = client == KAFKA_PYTHON and key.name in BEFORE_3
        assert (key.name.replace(".", "_") in keywords(client)) != is_old


@pytest.mark.parametrize(
    ("method", "client"),
    [
        pytest.param(each, client, id=f"{client}-{each.of}.{each.name}")
        for each in FAMILIAR_METHODS
        for client in each.clients
    ],
)
def test_a_method_is_one_of_the_clients(method: FamiliarMethod, client: str) -> None:
    """Each method of the table exists in the other client's class for the same role."""
    is_old = client == KAFKA_PYTHON and method.name in BEFORE_3
    assert hasattr(CLASSES[client][method.of], method.name) != is_old


@pytest.mark.parametrize(
    ("argument", "client"),
    [
        pytest.param(each, client, id=f"{client}-{each.of}-{each.name}")
        for each in FAMILIAR_ARGUMENTS
        for client in each.clients
        if client != CONFLUENT
    ],
)
def test_an_argument_is_one_of_the_clients(argument: FamiliarMethod, client: str) -> None:
    """Each argument exists in the other client. confluent-kafka is left out, since its C methods have no signature."""
    role, _, name = argument.of.partition(".")
    method = getattr(CLASSES[client][role], name, None) or CLASSES[client][role].getmany
    assert argument.name in inspect.signature(method).parameters
