"""Envelopes (KIP-590), in which a broker forwards a client's request to the controller and gets its answer.
PURE.

The envelope contains the complete request with its header, in the form that it has on a client's connection.
It also has the client's principal and address. The envelope's answer contains the complete response with its
header.

The envelope's answer also has a field of Odradek, which Kafka skips (KIP-482): the offset of the metadata
image that the response shows. The broker sends the response to its client when its own image has reached this
offset. So a client that has created a topic finds it in the broker's metadata.
"""

from __future__ import annotations

from ipaddress import ip_address
from struct import Struct
from typing import Any

import attrs

from odradek.named_states import reached
from odradek.wire.api import request_class, request_header_version, response_class, response_header_version
from odradek.wire.codec import ErrorCounts, counting_encoder, decode, decode_bounded, encoder
from odradek.wire.errors import ErrorCode, KafkaError, RemoteProtocolError
from odradek.wire.framing.frames import is_supported, parse_request_header, parse_response_header
from odradek.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from odradek.wire.principal import decode_principal, encode_principal
from odradek.wire.structure import Message

__all__ = [
    "Enclosed",
    "Sender",
    "carries_code",
    "open_request",
    "open_response",
    "seal_request",
    "seal_response",
]

_REQUEST_START = Struct(">hhih")
_CORRELATION_ID = Struct(">i")
NO_ADDRESS = bytes(4)


@attrs.frozen
class Sender:
    """The client that sent a request to a broker, as the broker describes it to the controller."""

    principal: str = "User:ANONYMOUS"
    client_id: str = ""
    client_address: str = ""
    by_token: bool = False
    """True if the client logged in with a delegation token."""


NODE_ITSELF = Sender()


@attrs.frozen
class Enclosed:
    """The request from an envelope, with the facts that are needed to answer it."""

    api_key: int
    api_version: int
    correlation_id: int
    sender: Sender
    request: Message


def seal_request(request: Message, version: int, sender: Sender) -> EnvelopeRequest:
    """Put a request into an envelope. Raises `LocalProtocolError` if the request does not fit its version."""
    api_key = request.API_KEY
    assert api_key is not None
    name = sender.client_id.encode()
    w = bytearray(_REQUEST_START.pack(api_key, version, 0, len(name)))
    w += name
    if request_header_version(api_key, version) == 2:
        w.append(0)
    encoder(type(request), version)(w, request, None)
    return EnvelopeRequest(
        bytes(w), encode_principal(sender.principal, sender.by_token), _packed(sender.client_address)
    )


def _packed(address: str) -> bytes:
    try:
        return ip_address(address).packed
    except ValueError:
        return NO_ADDRESS


def open_request(envelope: EnvelopeRequest) -> Enclosed:
    """Return the request from an envelope.

    Raises `KafkaError`: PRINCIPAL_DESERIALIZATION_FAILURE, UNSUPPORTED_VERSION or INVALID_REQUEST.
    """
    try:
        principal, by_token = decode_principal(envelope.request_principal or b"")
    except RemoteProtocolError as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from error
    data = envelope.request_data
    try:
        address = str(ip_address(envelope.client_host_address))
        api_key, version, correlation_id, client_id, body = parse_request_header(data, 0, len(data))
        if not is_supported(api_key, version):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"the API with key {api_key} has no version {version}"
            )
        request = decode_bounded(request_class(api_key), version, data, body)
    except (RemoteProtocolError, ValueError) as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return Enclosed(
        api_key, version, correlation_id, Sender(principal, client_id, address, by_token), request
    )


def seal_response(enclosed: Enclosed, response: Message, image_offset: int = -1) -> EnvelopeResponse:
    """Put a response into the answer of its envelope.

    As in Kafka, NOT_CONTROLLER in the response becomes the envelope's own error, so that the broker retries.
    `image_offset` is the offset of the last record in the image that the response shows. It is -1 if the
    response shows no image.
    """
    w = bytearray(_CORRELATION_ID.pack(enclosed.correlation_id))
    if response_header_version(enclosed.api_key, enclosed.api_version):
        w.append(0)
    errors: ErrorCounts = {}
    counting_encoder(type(response), enclosed.api_version)(w, response, None, errors)
    if ErrorCode.NOT_CONTROLLER in errors:
        reached("controller.resigned_with_envelope")
        return EnvelopeResponse(None, ErrorCode.NOT_CONTROLLER)
    return EnvelopeResponse(bytes(w), ErrorCode.NONE, image_offset)


def open_response(envelope: EnvelopeResponse, api_key: int, version: int) -> Any:
    """Return the response from an envelope's answer.

    Raises `KafkaError` with the envelope's error, or for malformed bytes.
    """
    if envelope.error_code:
        raise KafkaError(ErrorCode(envelope.error_code))
    data = envelope.response_data or b""
    try:
        _, body = parse_response_header(data, 0, len(data), response_header_version(api_key, version))
        return decode(response_class(api_key), version, data, body, exact=False)
    except RemoteProtocolError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error


def carries_code(response: Message, version: int, code: ErrorCode) -> bool:
    """True if some field of the response has this error code."""
    errors: ErrorCounts = {}
    counting_encoder(type(response), version)(bytearray(), response, None, errors)
    return code in errors
