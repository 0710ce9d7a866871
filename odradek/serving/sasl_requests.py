"""The handlers of SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368). They pass requests to the
connection's login.
"""

from __future__ import annotations

from odradek.serving.contract import Context, Result
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

__all__ = ["authenticate", "handshake"]


def handshake(context: Context, request: SaslHandshakeRequest) -> Result:
    """Answer SaslHandshake (API 17): the error is ILLEGAL_SASL_STATE if the listener has no SASL, or if it is
    too early for a renewal.
    """
    if context.login is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    answer: SaslHandshakeResponse = context.login.handshake(request, context.api_version)
    return answer


def authenticate(context: Context, request: SaslAuthenticateRequest) -> Result:
    """Answer SaslAuthenticate (API 36): ILLEGAL_SASL_STATE without SASL."""
    if context.login is None:
        return SaslAuthenticateResponse(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
        )
    answer: SaslAuthenticateResponse = context.login.authenticate(request)
    return answer
