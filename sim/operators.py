"""An operator at work during a storm: moves partitions, asks for elections, makes and deletes topics. PORTED.

Nothing of it needs to succeed, but nothing of it may lose a record, and once the storm is over every move must end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from odradek.client.admin import NewTopic, create_topics, delete_topics
from odradek.client.admin_partitions import alter_partition_reassignments, elect_leaders
from odradek.client.consumer_types import TopicPartition
from odradek.client.errors import ClientError
from odradek.client.operation import Operation
from sim.cluster import Cluster
from sim.history import Partition
from wire.errors import KafkaError

CALL_SECONDS = 5.0
SCRATCH_TOPICS = 3

__all__ = ["Operator"]


class Operator:
    """See the module. `partitions` are those of the load, which it moves about but never deletes."""

    def __init__(self, cluster: Cluster, partitions: Sequence[Partition], replicas: int) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._replicas = replicas

    async def work(self, random: Random) -> str:
        """Do one thing, and say which."""
        doing: Sequence[Callable[[Random], Operation[object]]] = (
            self._move,
            self._move,
            self._elect,
            self._create,
            self._delete,
        )
        chosen = random.choice(doing)
        client = self._cluster.observer
        try:
            await client.run(chosen(random))
        except (KafkaError, ClientError) as error:
            return f"{chosen.__name__.strip('_')}: {type(error).__name__}"
        return chosen.__name__.strip("_")

    def _move(self, random: Random) -> Operation[object]:
        """Other replicas for a partition, or the same in another order; or stop what is under way."""
        ids = [member.config.node_id for member in self._cluster.brokers]
        key = TopicPartition(*random.choice(self._partitions))
        replicas = None if random.random() < 0.1 else random.sample(ids, self._replicas)
        return alter_partition_reassignments(
            self._cluster.observer.core, {key: replicas}, timeout=CALL_SECONDS
        )

    def _elect(self, random: Random) -> Operation[object]:
        """The preferred leaders, of all or of one."""
        one = [TopicPartition(*random.choice(self._partitions))]
        wanted = None if random.random() < 0.5 else one
        return elect_leaders(self._cluster.observer.core, wanted, timeout=CALL_SECONDS)

    def _create(self, random: Random) -> Operation[object]:
        name = f"scratch-{random.randrange(SCRATCH_TOPICS)}"
        topic = NewTopic(name, random.choice((1, 5)), self._replicas)
        return create_topics(self._cluster.observer.core, [topic], timeout=CALL_SECONDS)

    def _delete(self, random: Random) -> Operation[object]:
        name = f"scratch-{random.randrange(SCRATCH_TOPICS)}"
        return delete_topics(self._cluster.observer.core, [name], timeout=CALL_SECONDS)
