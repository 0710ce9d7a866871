"""The API versions that this node supports: the versions in the table, and no others, are advertised.

An entry binds decoder, encoder and handler of one API version. An entry is built when the first request of
its version comes, so message classes load at first use. It also counts requests and bytes in plain numbers,
which the connection loop increases and the metrics page reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from odradek.serving.contract import Context, Handler, Result
from odradek.wire.api import (
    ApiKey,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from odradek.wire.codec import (
    ELEMENTS_AT_ONCE,
    ErrorCounts,
    bounded_decoder,
    counting_encoder,
    decoder,
    measuring_decoder,
)
from odradek.wire.errors import RemoteProtocolError

LATENCY_BOUNDS_SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds, inclusive, of the latency histogram's buckets; another bucket holds slower requests."""


class ApiEntry:
    """Decoder, encoder, handler and counts of one version of one API. `prefix` is an empty response frame: size,
    correlation id, tags.
    """

    __slots__ = (
        "answered_in_turn",
        "api_key",
        "decode",
        "decode_all",
        "decode_large",
        "delayed",
        "elements",
        "encode",
        "errors",
        "flexible",
        "handle",
        "latencies",
        "latency_seconds",
        "prefix",
        "request_bytes",
        "response_bytes",
        "unanswered",
        "version",
    )

    def __init__(self, api_key: int, version: int, handle: Handler) -> None:
        self.api_key = api_key
        self.version = version
        self.handle = handle
        self.flexible = request_header_version(api_key, version) >= 2
        self.decode: Callable[[Any, int], tuple[Any, int]] = decoder(request_class(api_key), version)
        self.encode: Callable[[bytearray, Any, list[tuple[int, Any]] | None, ErrorCounts], None] = (
            counting_encoder(response_class(api_key), version)
        )
        self.decode_large: Callable[[Any, int], tuple[Any, int]] = self._decode_first_large
        """A function like `decode` for a frame of more than `ELEMENTS_AT_ONCE` bytes. Raises `TooManyElements` if the
        request has more elements. The decoder is compiled when the first such frame arrives.
        """
        self.decode_all: Callable[[Any, int], tuple[Any, int]] = self._decode_first_of_many
        """A function like `decode` for a frame with up to `ELEMENTS_MAX` elements. It runs in a worker. Returns the
        request and the number of its elements.
        """
        self.prefix = bytes(9 if response_header_version(api_key, version) >= 1 else 8)
        self.errors: ErrorCounts = {}
        """The number of occurrences of each error code in responses."""
        self.latencies = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        """The number of answered requests in each bucket of latency."""
        self.latency_seconds = 0.0
        """The sum of all latencies in seconds: from the turn that received a request until its answer was passed to
        the socket.
        """
        self.answered_in_turn = 0
        """The number of answers in the present turn, whose latency is not known yet."""
        self.unanswered = 0
        """Requests without an answer: Produce with acks=0, and requests that closed their connection."""
        self.delayed = 0
        """The number of answered requests that had to wait, for an event or for an earlier request of the connection.
        """
        self.request_bytes = 0
        self.elements = 0
        """The number of array elements in the requests that workers decoded."""
        self.response_bytes = 0

    def _decode_first_large(self, frame: Any, offset: int) -> tuple[Any, int]:
        self.decode_large = bounded_decoder(request_class(self.api_key), self.version, ELEMENTS_AT_ONCE)
        return self.decode_large(frame, offset)

    def _decode_first_of_many(self, frame: Any, offset: int) -> tuple[Any, int]:
        self.decode_all = measuring_decoder(request_class(self.api_key), self.version)
        return self.decode_all(frame, offset)


class UnsupportedApiVersions(ApiEntry):
    """Answers an ApiVersions request with an unsupported version. The body is not read, and the answer has
    version 0 (KIP-511).
    """

    def __init__(self, handle: Handler) -> None:
        super().__init__(ApiKey.API_VERSIONS, 0, self.refuse)
        self.flexible = False
        self.decode = self.decode_large = self.decode_all = lambda frame, offset: (None, offset)
        self._handle_unsupported = handle

    def refuse(self, context: Context, request: Any) -> Result:
        return self._handle_unsupported(context, request)


class ApiTable:
    """The entries of all supported APIs, by API key and version."""

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
        """Return the entry of an API version. Raises `RemoteProtocolError` if it is not supported; as in Kafka, the
        connection then closes.
        """
        entry = self._entries.get((api_key << 16) | version)
        return entry if entry is not None else self._build(api_key, version)

    def entries(self) -> Iterable[ApiEntry]:
        """List the entries that were used so far, for their counts."""
        return (self._unsupported, *self._entries.values())

    def _build(self, api_key: int, version: int) -> ApiEntry:
        handler = self._handlers.get(api_key)
        if handler is None:
            raise RemoteProtocolError(
                f"the client sent a request with API key {api_key}, which this node does not serve"
            )
        low, high = self._served[api_key]
        if not low <= version <= high:
            if api_key == ApiKey.API_VERSIONS:
                return self._unsupported
            raise RemoteProtocolError(
                f"the client sent {ApiKey(api_key).name} version {version}, and this node serves the "
                f"versions {low} to {high}"
            )
        entry = self._entries[(api_key << 16) | version] = ApiEntry(api_key, version, handler)
        return entry
