"""Where we differ from Apache Kafka on purpose, and why: what docs/compatibility.md says, and what tests let pass.

Each rule of `DELIBERATE` must still match something: see the test.
"""

from __future__ import annotations

import re

import attrs


@attrs.frozen
class Deliberate:
    """Differences whose text (`CASE: PATH: Kafka ..., here ...`) matches `pattern`."""

    api: str
    pattern: str
    kafka: str
    """What Kafka does."""
    here: str
    reason: str

    def covers(self, difference: str) -> bool:
        """Whether this rule is about the difference."""
        return re.search(self.pattern, difference) is not None


DELIBERATE = (
    Deliberate(
        "CreateTopics, DescribeConfigs",
        r"min\.insync\.replicas|config_source: Kafka 3, here 5$|configs\[\d+\]\.synonyms: Kafka .*\"min.insync",
        "names a cluster-wide dynamic value as the source of `min.insync.replicas`",
        "the default is the source, the value is the same",
        "Kafka's format writes that value for eligible leader replicas, which come with the quorum of several voters.",
    ),
    Deliberate(
        "Fetch",
        r"^fetch within limits of bytes: \[1[89]\]",
        "answers a negative `partition_max_bytes` with UNKNOWN_SERVER_ERROR",
        "is a limit like 0: one batch",
        "In Kafka it is an exception on the way; a client gets nowhere with it.",
    ),
    Deliberate(
        "Metadata",
        r"^metadata by id: \[[38]\]",
        "answers a topic with neither name nor id with UNKNOWN_SERVER_ERROR, and from version 13 on nothing else",
        "UNKNOWN_TOPIC_ID for that topic, the brokers as ever",
        "In Kafka it is an exception on the way; the brokers are what a client needs most.",
    ),
)


@attrs.frozen
class Remark:
    """A difference that answers to single requests do not show, or an API that is not served."""

    subject: str
    text: str


NOT_SEEN = (
    Remark(
        "Records of a batch",
        "are not parsed unless the topic is compacted, or its codec or its timestamps ask for it. A batch whose records "
        "contradict each other, but whose header, CRC and compression are sound, is accepted.",
    ),
    Remark(
        "Several requests of one connection",
        "are in progress at once, where Kafka handles one at a time. Answers keep the order of the requests.",
    ),
    Remark(
        "`socket.send.buffer.bytes`",
        "is 256 KiB unless the file sets it (Kafka: 100 KiB), and the receive buffer is left to the kernel: measured.",
    ),
    Remark(
        "A Produce with null records",
        "gets INVALID_RECORD; Kafka 4.3 never answers it.",
    ),
    Remark(
        "A group member with broken metadata",
        "of the protocol type `consumer` is a member like others; in Kafka 4.3 the rebalance of its group does not end.",
    ),
    Remark(
        "A bit flip below the recovery point",
        "of a data log is not looked for at start. `odradek log dump --verify` finds it, and so does every client that "
        "checks CRCs.",
    ),
)

NOT_SERVED = (
    Remark("24 to 28, 65, 66", "transactions: to come. A batch that claims to be transactional is refused."),
    Remark("68, 69", "groups of the new protocol (KIP-848): to come; the classic protocol is complete."),
    Remark(
        "43, 45, 46, 52 to 59, 62 to 64, 67, 70, 73, 80 to 82",
        "elections, reassignment, the quorum, replication and registration: come with more than one node.",
    ),
    Remark(
        "17, 29 to 31, 36, 38 to 41, 50, 51", "SASL, ACLs, delegation tokens, SCRAM: come with authorization."
    ),
    Remark("48, 49", "client quotas: to come."),
    Remark("71, 72, 76 to 79, 83 to 92", "client telemetry, share groups, streams groups: not planned."),
)
