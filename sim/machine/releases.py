"""The release before this one, as nodes of a simulated cluster run it until they are upgraded."""

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
    # Before version 1, tokens are bare frames (KIP-152), which our clients do not speak.
    versions_kept=frozenset({ApiKey.SASL_HANDSHAKE}),
)
OLDER_LEVELS = {ELIGIBLE_LEADER_REPLICAS: 0, TRANSACTION_VERSION: 1}
"""The feature levels of a cluster that begins with nodes of the release before."""
