"""Content as in a real cluster for the measured node, as the first records of its metadata log.

To make this content by requests would take minutes. Records in `bootstrap.checkpoint` make the same content
in a second. Most ACLs and quotas are about other clients. Some ACLs allow the measuring clients everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from odradek.metadata_quorum.features import SUPPORTED_FEATURES
from odradek.metadata_quorum.replica.checkpoint_files import BOOTSTRAP_FILE, encode_snapshot, open_snapshot
from odradek.security.acls.rules import (
    CLUSTER_NAME,
    SUPPORTED,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek.wire.messages.metadata_records import (
    AccessControlEntryRecord,
    BrokerFeature,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from odradek.wire.structure import Message

JUDGE = "judge"
JUDGES = ("User:ANONYMOUS", f"User:{JUDGE}")
"""The principals of the measuring clients, without and with a login."""
AWAY = 2
"""The id of a broker that is registered but does not exist. It hosts the partitions that the node does not host."""
PER_TOPIC = 2
"""The number of partitions of each topic on the broker `AWAY`."""
RULED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
SOON_MS = 1 << 42
"""A time (milliseconds since 1970) after all measurements."""


@attrs.frozen
class Holdings:
    """The number of things of each kind that the node holds."""

    rules: int = 10_000
    """The number of ACLs with the resource name `*`, for each resource type in `RULED`."""
    quotas: int = 10_000
    tokens: int = 10_000
    users: int = 1_000
    groups: int = 1_000
    transactional_ids: int = 2_000
    partitions: int = 10_000
    """The number of partitions of broker 2, in addition to those that the node hosts."""

    def records(self) -> Iterator[Message]:
        """Yield the metadata records of all these things, except groups and transactional ids, which are not in the
        metadata log.
        """
        yield from self._rules()
        for number in range(self.quotas):
            entity = [EntityData("user", f"user-{number}"), EntityData("client-id", f"client-{number}")]
            yield ClientQuotaRecord(entity[: 1 + number % 2], "producer_byte_rate", 1e9 + number, False)
        for number in range(self.tokens):
            owner = f"User:owner-{number % 100}"
            yield DelegationTokenRecord(owner, owner, [], 1, SOON_MS, SOON_MS, f"token-{number}")
        for number in range(self.users):
            yield UserScramCredentialRecord(f"user-{number}", 1, b"salt", bytes(32), bytes(32), 4096)
        yield from self._partitions()

    def _rules(self) -> Iterator[Message]:
        allowed = (int(Operation.ALL), int(Permission.ALLOW))
        number = 0
        for kind in SUPPORTED:
            for judge in JUDGES:
                number += 1
                name = CLUSTER_NAME if kind == ResourceType.CLUSTER else "*"
                yield AccessControlEntryRecord(
                    number.to_bytes(16, "big"), kind, name, PatternType.LITERAL, judge, "*", *allowed
                )
        for kind in RULED:
            for each in range(self.rules):
                number += 1
                yield AccessControlEntryRecord(
                    number.to_bytes(16, "big"),
                    kind,
                    "*",
                    PatternType.LITERAL,
                    f"User:app-{each}",
                    "*",
                    Operation.READ,
                    Permission.ALLOW,
                )

    def _partitions(self) -> Iterator[Message]:
        if not self.partitions:
            return
        directory = b"judge's log dir."
        features = [BrokerFeature(name, *levels) for name, levels in SUPPORTED_FEATURES.items()]
        yield RegisterBrokerRecord(
            AWAY, False, b"judge's broker 2", 1, [], features, None, True, False, [directory], []
        )
        for number in range(self.partitions):
            topic, partition = divmod(number, PER_TOPIC)
            topic_id = (topic + 1_000).to_bytes(16, "big")
            if not partition:
                yield TopicRecord(f"elsewhere-{topic}", topic_id)
            yield PartitionRecord(partition, topic_id, [AWAY], [AWAY], [], [], -1, 0, 0, 0, [directory])


def add_records(log_dir: Path, records: Sequence[Message]) -> None:
    """Add records to the bootstrap records of a node that was formatted in `log_dir`."""
    path = log_dir / BOOTSTRAP_FILE
    first = open_snapshot(path.read_bytes(), source=str(path)).records
    path.write_bytes(encode_snapshot([*first, *records], epoch=0, timestamp_ms=1))
