"""Where we differ from Apache Kafka on purpose, and why. Each rule must still match something: see the test."""

from __future__ import annotations

import re

import attrs


@attrs.frozen
class Deliberate:
    """Differences whose text (`CASE: PATH: Kafka ..., here ...`) matches `pattern`."""

    pattern: str
    reason: str

    def covers(self, difference: str) -> bool:
        """Whether this rule is about the difference."""
        return re.search(self.pattern, difference) is not None


DELIBERATE = (
    Deliberate(
        r"record_errors: Kafka \[\{.*, here \[\]$",
        "records of a batch are not parsed, so an error is the batch's, not a record's",
    ),
    Deliberate(
        r"min\.insync\.replicas|config_source: Kafka 3, here 5$|configs\[\d+\]\.synonyms: Kafka .*\"min.insync",
        "Kafka's format writes min.insync.replicas as a cluster-wide value with eligible leader replicas, "
        "which come with the multi-voter quorum",
    ),
    Deliberate(
        r"^fetch within limits of bytes: \[1[89]\]",
        "a negative partition_max_bytes is an exception inside Kafka; here it is a limit like 0",
    ),
    Deliberate(
        r"^metadata by id: \[[38]\]",
        "a topic with neither name nor id is an exception inside Kafka; here its id is unknown",
    ),
    Deliberate(r"^describe_configs with documentation", "configuration keys are described in our guides"),
)
