"""Create, fill and empty topics for the tests of Spark, with our own clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from odradek import Admin, Producer
from odradek.client.admin import NewTopic
from odradek.wire.batches.records import Header

__all__ = ["Topics"]


@attrs.define
class Topics:
    """Topics of the cluster at `bootstrap`."""

    bootstrap: str

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic with these settings (`retention_ms="1"`); return its name."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            settings = {key.replace("_", "."): value for key, value in configs.items()}
            [created] = admin.create_topics([NewTopic(name, partitions=partitions, configs=settings)])
            if created.error is not None:
                raise created.error
        return name

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone from the metadata."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_topics([name])

    def send(
        self,
        name: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        **settings: object,
    ) -> list[int]:
        """Write values to a partition; return their offsets."""
        with Producer(bootstrap_servers=self.bootstrap, **settings) as producer:
            sent = [
                producer.send(
                    name,
                    value=value,
                    key=key,
                    partition=partition,
                    timestamp_ms=timestamp,
                    headers=list(headers),
                )
                for value in values
            ]
            return [each.result(60).offset for each in sent]

    def delete_records(self, name: str, before: dict[int, int]) -> None:
        """Delete the records of partitions below these offsets."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            outcomes = admin.delete_records({(name, index): offset for index, offset in before.items()})
            for outcome in outcomes.values():
                if outcome.error is not None:
                    raise outcome.error

    def grow(self, name: str, partitions: int) -> None:
        """Raise the number of partitions of a topic to this count."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_partitions({name: partitions})
