"""The previous release, as nodes of a simulated cluster run it before they are upgraded."""

from __future__ import annotations

from odradek.metadata_quorum.features import (
    ELIGIBLE_LEADER_REPLICAS,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
    Release,
)
from odradek.wire.api_keys import ApiKey

OLDER_RELEASE = Release(
    {**SUPPORTED_FEATURES, ELIGIBLE_LEADER_REPLICAS: (0, 0), TRANSACTION_VERSION: (0, 1)},
    versions_behind=1,
    # Before version 1, SASL tokens are sent without Kafka's headers (KIP-152), which our clients do not support.
    versions_kept=frozenset({ApiKey.SASL_HANDSHAKE}),
)
OLDER_LEVELS = {ELIGIBLE_LEADER_REPLICAS: 0, TRANSACTION_VERSION: 1}
"""The feature levels of a cluster that starts with nodes of the previous release."""
