"""The layers of a broker's configuration, built from a metadata image."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS
from odradek.metadata_quorum.image.metadata_image import MetadataImage


def layers_for(
    image: MetadataImage, static: Mapping[str, str], broker_id: int | None = None
) -> BrokerConfigLayers:
    """Build the layers of a broker's configuration. The dynamic values are from `image`, the values of its
    properties file are in `static`.

    Without `broker_id`, the layer of a single broker's values is empty.
    """
    return BrokerConfigLayers(
        static,
        {} if broker_id is None else image.broker_configs(broker_id),
        image.broker_configs(None),
        image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1,
    )
