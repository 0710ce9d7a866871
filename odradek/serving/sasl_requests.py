"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368): the connection's own login answers them."""

from __future__ import annotations

from odradek.serving.contract import Context, Handler, Result
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

__all__ = ["sasl_handlers"]


def sasl_handlers() -> dict[int, Handler]:
    """List the handlers, the same for brokers and controllers."""
    return {ApiKey.SASL_HANDSHAKE: _handshake, ApiKey.SASL_AUTHENTICATE: _authenticate}


def _handshake(context: Context, request: SaslHandshakeRequest) -> Result:
    """Handle API 17. Without SASL, and after a login that need not be renewed: ILLEGAL_SASL_STATE."""
    if context.login is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    answer: SaslHandshakeResponse = context.login.handshake(request, context.api_version)
    return answer


def _authenticate(context: Context, request: SaslAuthenticateRequest) -> Result:
    """Handle API 36."""
    if context.login is None:
        return SaslAuthenticateResponse(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
        )
    answer: SaslAuthenticateResponse = context.login.authenticate(request)
    return answer
