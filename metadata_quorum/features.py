"""The levels of features that this release supports (KIP-584), the check of a cluster's levels against them,
and the levels of a new cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.wire.api import api_versions

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
TRANSACTION_VERSION = "transaction.version"
"""The name of the feature for transactions. At level 0, transactions work as in KIP-98. From level 1 on, records of the
transaction log may have tagged fields. From level 2 on, each transaction has a new epoch (KIP-890).
"""
GROUP_VERSION = "group.version"
"""The name of the feature for groups. From level 1 on, groups may use the consumer protocol (KIP-848)."""
EPOCHS_GROW_LEVEL = 2
"""From this level of `transaction.version` on, each transaction has a new epoch. The transaction's marker has
a higher epoch than its records (KIP-890).
"""

METADATA_VERSION_4_3 = 30
"""The level of `metadata.version` for 4.3-IV0: the formats of metadata records that this release writes and
reads.
"""

SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (METADATA_VERSION_4_3, METADATA_VERSION_4_3),
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    GROUP_VERSION: (0, 1),
}
"""The lowest and the highest supported level of each feature. A feature is listed only once it is
implemented.
"""

REPLICA_LOG_INFO = "odradek.replica.log.info"
OWN_FEATURES: dict[str, tuple[int, int]] = {REPLICA_LOG_INFO: (0, 1)}
"""Features that nodes report only to each other, when they register. These features have no finalized level,
and are hidden from clients. Each of them means that a node understands certain tagged fields of Odradek
(docs/internals/own-fields.md).
"""

BOOTSTRAP_FEATURES: dict[str, int] = {
    METADATA_VERSION: METADATA_VERSION_4_3,
    ELIGIBLE_LEADER_REPLICAS: 1,
    TRANSACTION_VERSION: 2,
    GROUP_VERSION: 1,
}
"""The levels that `storage format` writes into the bootstrap records of a new cluster."""

KRAFT_VERSION_LEVEL = 1
"""The level of `kraft.version` at which the voters are in the log (KIP-853). A control record finalizes it,
not a feature record.
"""


@attrs.frozen
class Release:
    """The versions and feature levels that nodes of one release support. During an upgrade, a cluster has
    nodes of two releases.

    A node can act as an older release: it then lowers the newest version of each client API by
    `versions_behind`. The APIs in `versions_kept` are exempt, and so are requests between nodes. Nodes never
    negotiate versions among themselves, because the finalized `metadata.version` fixes the versions.
    """

    features: Mapping[str, tuple[int, int]]
    versions_behind: int = 0
    versions_kept: frozenset[int] = frozenset()
    own_features: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    """Features that nodes of this release register in addition to `features`."""

    @property
    def registered_features(self) -> dict[str, tuple[int, int]]:
        """The levels of all features that a node of this release registers, sorted by name."""
        return dict(sorted({**self.features, **self.own_features}.items()))

    def client_versions(self, key: int) -> tuple[int, int]:
        """Return the first and the last version of an API that brokers of this release serve."""
        first, last = api_versions(key)
        return first, last if key in self.versions_kept else max(first, last - self.versions_behind)


THIS_RELEASE = Release(SUPPORTED_FEATURES, own_features=OWN_FEATURES)


def unsupported_feature(finalized: Mapping[str, int], release: Release = THIS_RELEASE) -> str | None:
    """Check whether this release supports the cluster's finalized levels. Returns None if it does, otherwise
    a sentence with the first unsupported feature.
    """
    for name, level in sorted(finalized.items()):
        low, high = release.features.get(name, (0, 0))
        if not low <= level <= high:
            return (
                f"the cluster's feature {name} is finalized at level {level}, and this version "
                f"supports the levels {low} to {high}"
            )
    return None
