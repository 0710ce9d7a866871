"""UpdateFeatures: change finalized feature levels (KIP-584, KIP-1022), with the further changes that a new
level requires. PURE.

A level is finalized only if this controller and every registered node support it. Checks, their order and their texts
are Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek.metadata_quorum.config.config_defs import broker_defs
from odradek.metadata_quorum.config.effective_config import MIN_ISR
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.features import (
    ELIGIBLE_LEADER_REPLICAS,
    KRAFT_VERSION,
    KRAFT_VERSION_LEVEL,
    METADATA_VERSION,
    Release,
)
from odradek.metadata_quorum.image.metadata_image import FeatureRange, MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.wire.config_resources import RESOURCE_BROKER
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata_records import ConfigRecord, FeatureLevelRecord
from odradek.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.wire.schema.versions import UPDATE_FEATURES_NO_RESULTS, UPDATE_FEATURES_UPGRADE_TYPE
from odradek.wire.structure import Message

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


def update_features(
    image: MetadataImage, request: UpdateFeaturesRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Change all requested feature levels, or none if one is refused."""
    settings = basis.settings
    records: list[Message] = []
    try:
        # If a request updates one feature several times, Kafka applies the last update.
        for update in {update.feature: update for update in request.feature_updates}.values():
            records += _update(image, update, context.api_version, settings.release)
    except KafkaError as error:
        message = (
            f"The update failed for all features since the following feature had an error: {error.message}"
        )
        return Decision([], UpdateFeaturesResponse(0, error.code, message, []))
    if enables_eligible_replicas(records):
        records += cluster_wide_min_isr(image, settings)
    results = []
    if context.api_version < UPDATE_FEATURES_NO_RESULTS:
        results = [
            UpdatableFeatureResult(update.feature, ErrorCode.NONE, None) for update in request.feature_updates
        ]
    response = UpdateFeaturesResponse(0, ErrorCode.NONE, None, results)
    return Decision([] if request.validate_only else records, response)


def _update(
    image: MetadataImage, update: FeatureUpdateKey, api_version: int, release: Release
) -> list[Message]:
    """Make the record for one level; no record if the level is already finalized.

    Raises `KafkaError` INVALID_UPDATE_VERSION.
    """
    name, level = update.feature, update.max_version_level
    upgrade_type = update.upgrade_type
    if api_version < UPDATE_FEATURES_UPGRADE_TYPE:
        upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    current = KRAFT_VERSION_LEVEL if name == KRAFT_VERSION else image.features.get(name, 0)
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    if level == 0 and name not in release.features:
        raise _invalid(update, f"Feature {name} not found.")
    for what, low, high in _nodes(image, name, release):
        if not low <= level <= high and (level != 0 or name == METADATA_VERSION):
            supports = (
                "does not support this feature."
                if high == 0
                else f"only supports versions {_range(low, high)}"
            )
            raise _invalid(update, f"{what} {supports}")
    if level < current and upgrade_type == UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade.",
        )
    if level > current and upgrade_type != UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if level == current:
        return []
    if not release.features[name][0] <= level or name == KRAFT_VERSION:
        raise _invalid(update, "This version of the cluster cannot do without it.")
    return [FeatureLevelRecord(name, level)]


def _nodes(image: MetadataImage, name: str, release: Release) -> Iterator[tuple[str, int, int]]:
    """Yield for each node its name and its lowest and highest supported level of a feature: this controller,
    brokers, other controllers.
    """
    yield "Local controller", *release.features.get(name, (0, 0))
    for broker_id, broker in sorted(image.brokers.items()):
        yield f"Broker {broker_id}", *_supported(broker.features, name)
    for controller_id, controller in sorted(image.controllers.items()):
        yield f"Controller {controller_id}", *_supported(controller.features, name)


def _supported(features: Iterable[FeatureRange], name: str) -> tuple[int, int]:
    return next(((each.min_level, each.max_level) for each in features if each.name == name), (0, 0))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _invalid(update: FeatureUpdateKey, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}",
    )


def enables_eligible_replicas(records: Iterable[Message]) -> bool:
    """True if these records enable eligible leader replicas (KIP-966)."""
    return any(
        isinstance(record, FeatureLevelRecord)
        and record.name == ELIGIBLE_LEADER_REPLICAS
        and record.feature_level >= 1
        for record in records
    )


def cluster_wide_min_isr(image: MetadataImage, settings: ControllerSettings) -> list[Message]:
    """Make the records that set one cluster-wide `min.insync.replicas`, which eligible leader replicas need,
    and remove the values of single brokers.

    Without them, a controller with a different properties file would choose different eligible replicas.
    """
    records: list[Message] = []
    if MIN_ISR not in image.broker_configs(None):
        value = settings.static_config.get(MIN_ISR, broker_defs()[MIN_ISR].default)
        records.append(ConfigRecord(RESOURCE_BROKER, "", MIN_ISR, value))
    for kind, name in sorted(image.configs):
        if kind == RESOURCE_BROKER and name and MIN_ISR in image.configs[(kind, name)]:
            records.append(ConfigRecord(RESOURCE_BROKER, name, MIN_ISR, None))
    return records
