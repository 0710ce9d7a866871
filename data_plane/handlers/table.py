"""Which API versions this node speaks: what is in the table is advertised, and nothing else.

An entry binds decoder, encoder and handler of one API version; it is built when the first such request comes, so
that message classes load at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from data_plane.handlers.contract import Context, Handler, Result
from wire.api import ApiKey, request_class, request_header_version, response_class, response_header_version
from wire.codec import decoder, encoder
from wire.errors import RemoteProtocolError


class ApiEntry:
    """How to serve one version of one API. `prefix` is the empty response frame: size, correlation id, tags."""

    __slots__ = ("api_key", "decode", "encode", "flexible", "handle", "prefix")

    def __init__(self, api_key: int, version: int, handle: Handler) -> None:
        self.api_key = api_key
        self.handle = handle
        self.flexible = request_header_version(api_key, version) >= 2
        self.decode: Callable[[Any, int], tuple[Any, int]] = decoder(request_class(api_key), version)
        self.encode: Callable[[bytearray, Any, list[tuple[int, Any]] | None], None] = encoder(
            response_class(api_key), version
        )
        self.prefix = bytes(9 if response_header_version(api_key, version) >= 1 else 8)


class UnsupportedApiVersions(ApiEntry):
    """An ApiVersions request newer than ours: its body is not read, and the answer has version 0 (KIP-511)."""

    def __init__(self, handle: Handler) -> None:
        super().__init__(ApiKey.API_VERSIONS, 0, self.refuse)
        self.flexible = False
        self.decode = lambda frame, offset: (None, offset)
        self._handle_unsupported = handle

    def refuse(self, context: Context, request: Any) -> Result:
        return self._handle_unsupported(context, request)


class ApiTable:
    """(API key, version) -> entry."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        advertised: Mapping[int, tuple[int, int]],
        served: Mapping[int, tuple[int, int]],
        unsupported_api_versions: Handler,
    ) -> None:
        self._handlers = handlers
        self.advertised = advertised
        self._served = served
        self._entries: dict[int, ApiEntry] = {}
        self._unsupported = UnsupportedApiVersions(unsupported_api_versions)

    def get(self, api_key: int, version: int) -> ApiEntry:
        """The entry. Raises `RemoteProtocolError` for what is not served: the connection closes, as Kafka's does."""
        entry = self._entries.get((api_key << 16) | version)
        return entry if entry is not None else self._build(api_key, version)

    def _build(self, api_key: int, version: int) -> ApiEntry:
        handler = self._handlers.get(api_key)
        if handler is None:
            raise RemoteProtocolError(f"request with API key {api_key}, which this node does not serve")
        low, high = self._served[api_key]
        if not low <= version <= high:
            if api_key == ApiKey.API_VERSIONS:
                return self._unsupported
            raise RemoteProtocolError(f"{ApiKey(api_key).name} version {version}; served are {low} to {high}")
        entry = self._entries[(api_key << 16) | version] = ApiEntry(api_key, version, handler)
        return entry
