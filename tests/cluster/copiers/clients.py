"""The clients by name. Only the client in use is imported, since copiers are started often."""

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
    """Import a client's transactor class."""
    found: Callable[..., Transactor] = getattr(
        import_module(f"tests.cluster.copiers.by_{client}"), CLASSES[client]
    )
    return found


def copier_of(client: str) -> Callable[..., Copier]:
    """Import a client's copier class. Raises `ValueError` for Java, which copies with Kafka's own tool."""
    if client == "java":
        raise ValueError("java has no copier class: use org.apache.kafka.tools.TransactionalMessageCopier")
    found: Callable[..., Copier] = transactor_of(client)  # type: ignore[assignment]
    return found
