"""The response with one error for the whole request, e.g. of a controller that is not active.

This response is built from the row for the request's API (`odradek.wire.schema.anatomy_rows`). Each API of a
controller has one row for all its versions. The encoder leaves out fields that an older version does not
have.
"""

from __future__ import annotations

from typing import Any

from odradek.metadata_quorum.controller.access.tokens import TokenRequest
from odradek.security.doors.token_doors import refuse_token_request
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy import refuse
from odradek.wire.structure import Message

__all__ = ["refusal"]


def refusal(request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """Make the response to a request with this error. Returns None if this kind of request gets no response."""
    if isinstance(request, TokenRequest):
        return refuse_token_request(request.message, code, request.requester)
    if not isinstance(request, Message):
        return None
    if request.API_KEY == ApiKey.CREATE_DELEGATION_TOKEN:
        return refuse_token_request(request, code)
    return refuse(request, code, code.message if message is None else message)
