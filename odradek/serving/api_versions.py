"""ApiVersions: the APIs that this node serves, and the features of the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from odradek.serving.contract import Context, Result
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from odradek.wire.schema.versions import API_VERSIONS_FEATURE_ZERO, API_VERSIONS_SOFTWARE

SOFTWARE_LETTERS_MAX = 200
"""The maximum number of letters of the name or version of a client's library; the rest is cut."""
SOFTWARE_MAX = 1_000
"""The maximum number of pairs of library name and version that connections share. If there are more, all
pairs are forgotten.
"""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class AgreedFeatures(Protocol):
    """The feature levels that a cluster has finalized, at an offset of its metadata log. Metadata images have these
    attributes.
    """

    @property
    def features(self) -> Mapping[str, int]: ...

    @property
    def offset(self) -> int: ...


class ApiVersionsHandler:
    """Answers ApiVersions, API 18 (KIP-35, KIP-511, KIP-584)."""

    def __init__(
        self,
        advertised: Mapping[int, tuple[int, int]],
        supported_features: Mapping[str, tuple[int, int]],
        agreed: Callable[[], AgreedFeatures],
        quorum_levels: Callable[[], Mapping[str, int]],
    ) -> None:
        """`quorum_levels` returns feature levels of the quorum. They are in control records of the metadata log, so
        images lack them.
        """
        self._keys = [ApiVersion(key, low, high) for key, (low, high) in sorted(advertised.items())]
        self._own_range = advertised[ApiKey.API_VERSIONS]
        self._supported = supported_features
        self._agreed = agreed
        self._quorum_levels = quorum_levels
        self._software: dict[tuple[str, str], tuple[str, str]] = {}

    def handle(self, context: Context, request: ApiVersionsRequest) -> Result:
        if context.api_version >= API_VERSIONS_SOFTWARE:
            name, version = request.client_software_name, request.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
                return ApiVersionsResponse(ErrorCode.INVALID_REQUEST, [])
            context.own.software = self._shared(name, version)
        agreed = self._agreed()
        supported = [
            SupportedFeatureKey(name, low, high)
            for name, (low, high) in sorted(self._supported.items())
            if low > 0 or context.api_version >= API_VERSIONS_FEATURE_ZERO
        ]
        levels = {**agreed.features, **self._quorum_levels()}
        finalized = [
            FinalizedFeatureKey(name, level, level) for name, level in sorted(levels.items()) if level > 0
        ]
        return ApiVersionsResponse(ErrorCode.NONE, self._keys, 0, supported, agreed.offset, finalized)

    def _shared(self, name: str, version: str) -> tuple[str, str]:
        """Return the pair of library name and version, as one object that all connections with the same library
        share.
        """
        said = name[:SOFTWARE_LETTERS_MAX], version[:SOFTWARE_LETTERS_MAX]
        if len(self._software) >= SOFTWARE_MAX:
            self._software.clear()
        return self._software.setdefault(said, said)

    def unsupported(self, context: Context, request: object) -> Result:
        """Answer a request of an unsupported version. The answer has version 0, an error, and only
        ApiVersions in its list.
        """
        low, high = self._own_range
        return ApiVersionsResponse(
            ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(ApiKey.API_VERSIONS, low, high)]
        )
