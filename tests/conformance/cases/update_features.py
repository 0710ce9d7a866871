"""UpdateFeatures: refused changes, and changes that are only validated."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.conformance.asking.talk import Talk, case

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def _update(talk: Talk, updates: list[FeatureUpdateKey], version: int = 2, *, validate: bool = False) -> None:
    talk.ask(UpdateFeaturesRequest(10_000, updates, validate), version)


def _versions(talk: Talk, *, version: int) -> None:
    _update(talk, [], version)
    _update(talk, [FeatureUpdateKey("no.such.feature", 1, False, UPGRADE)], version)
    _update(talk, [FeatureUpdateKey("metadata.version", 1, False, UPGRADE)], version)
    _update(talk, [FeatureUpdateKey("metadata.version", 99, False, UPGRADE)], version)


for _version in range(3):
    case(f"update_features v{_version}")(partial(_versions, version=_version))


@case("update_features with levels that cannot be")
def _(talk: Talk) -> None:
    for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        _update(talk, [FeatureUpdateKey("metadata.version", 0, False, kind)])
        _update(talk, [FeatureUpdateKey("metadata.version", -1, False, kind)])
        _update(talk, [FeatureUpdateKey("no.such.feature", 0, False, kind)])
    for kind in (0, 4, -1):
        _update(talk, [FeatureUpdateKey("metadata.version", 7, False, kind)])


@case("update_features names a feature twice")
def _(talk: Talk) -> None:
    twice = [FeatureUpdateKey("metadata.version", level, False, UPGRADE) for level in (99, 98)]
    _update(talk, twice)
    _update(talk, twice, validate=True)


@case("update_features without a name")
def _(talk: Talk) -> None:
    _update(talk, [FeatureUpdateKey("", 1, False, UPGRADE)])
