"""The replicas of new partitions: the rules for manual assignments, the replicas' first directories, and the
records that create the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.metadata_quorum.image.metadata_image import UNASSIGNED_DIRECTORY, MetadataImage, is_subset
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata_records import PartitionRecord

Assignment = tuple[list[int], list[int]]
"""The replicas and the in-sync replicas of a partition."""


def assigned(image: MetadataImage, placed: Iterable[list[int]]) -> list[Assignment]:
    """Make an assignment from each list of placed replicas. The replicas on active brokers form the ISR.

    No ISR is empty, since the placement gives every partition an active broker.
    """
    found: dict[tuple[int, ...], Assignment] = {}
    assignments = []
    for replicas in placed:
        key = tuple(replicas)
        if key not in found:
            found[key] = (replicas, active_replicas(image, replicas))
        assignments.append(found[key])
    return assignments


def active_replicas(image: MetadataImage, replicas: Iterable[int]) -> list[int]:
    """Select the replicas whose brokers are active. These replicas are in sync when the partition is created."""
    return [replica for replica in replicas if image.brokers[replica].is_active]


def check_given_replicas(image: MetadataImage, replicas: list[int], factor: int | None) -> None:
    """Check the manual assignment of one partition. `factor` is the required number of replicas; None means
    that any number is allowed. Raises `KafkaError` INVALID_REPLICA_ASSIGNMENT.
    """
    if not replicas:
        raise bad_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for replica in sorted(replicas):
        if replica not in image.brokers:
            raise bad_assignment(
                f"The manual partition assignment includes broker {replica}, but no such broker is registered."
            )
        if replica == previous:
            raise bad_assignment(
                f"The manual partition assignment includes the broker {replica} more than once."
            )
        previous = replica
    if factor is not None and len(replicas) != factor:
        raise bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
            f"but this is not consistent with previous partitions, which have {factor} replica(s)."
        )


def bad_assignment(message: str) -> KafkaError:
    """Make the error for an invalid manual assignment."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def partition_records(
    image: MetadataImage, topic_id: bytes, first: int, assignments: Iterable[Assignment]
) -> list[PartitionRecord]:
    """Make the records of new partitions, numbered from `first` on. Records with equal lists share one list.

    The first in-sync replica whose directory is not troubled leads (`odradek.serving.disk_troubles`). If all
    these directories are troubled, the first in-sync replica leads.
    """
    troubled = {each for ids in image.troubled_directories.values() for each in ids}
    directories = {broker_id: default_directory(image, broker_id) for broker_id in image.brokers}
    known_directories: dict[tuple[int, ...], list[bytes]] = {}
    records = []
    for number, (replicas, isr) in enumerate(assignments, first):
        assert is_subset(isr, replicas), (
            f"the ISR {isr} has brokers that are not among the replicas {replicas}"
        )
        key = tuple(replicas)
        if key not in known_directories:
            known_directories[key] = [directories[replica] for replica in replicas]
        records.append(
            PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=replicas,
                isr=isr,
                leader=next((each for each in isr if directories[each] not in troubled), isr[0]),
                leader_epoch=0,
                partition_epoch=0,
                directories=known_directories[key],
            )
        )
    return records


def default_directory(image: MetadataImage, broker_id: int) -> bytes:
    """Return the directory for a new replica on this broker.

    If the broker has several directories, the result is `UNASSIGNED_DIRECTORY`. Such a broker chooses a
    directory and reports it later.
    """
    directories = image.brokers[broker_id].log_dirs
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY
