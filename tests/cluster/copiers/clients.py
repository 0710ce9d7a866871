"""The clients by name; only what is asked for is imported, as copiers start often."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tests.cluster.copiers.api import Copier, Transactor

CLASSES = {
    "confluent": "ByConfluent",
    "odradek": "ByOdradek",
    "kafka_python": "ByKafkaPython",
    "aiokafka": "ByAiokafka",
    "java": "ByJava",
}


def transactor_of(client: str) -> Callable[..., Transactor]:
    """The class of a client's transactors."""
    found: Callable[..., Transactor] = getattr(
        import_module(f"tests.cluster.copiers.by_{client}"), CLASSES[client]
    )
    return found


def copier_of(client: str) -> Callable[..., Copier]:
    """The class of a client's copiers. Raises `ValueError` for Java, whose tool copies."""
    if client == "java":
        raise ValueError("Java copies by org.apache.kafka.tools.TransactionalMessageCopier")
    found: Callable[..., Copier] = transactor_of(client)  # type: ignore[assignment]
    return found
