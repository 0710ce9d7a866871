"""The basis of a decision besides the image, the request and its context: the controller's settings and its soft
state. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from metadata_quorum.controller.broker_sessions import BrokerSessions
from metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.security.tokens import TokenSecrets

__all__ = ["DecisionBasis", "TokenIds"]


class TokenIds:
    """Finds delegation tokens by their secrets. It is made of the image when the first one is looked for."""

    def __init__(self) -> None:
        self._ids: dict[bytes, str] | None = None

    def find(self, secret: bytes, tokens: Mapping[str, Any], secrets: TokenSecrets) -> str | None:
        """The id of the token that has this secret; None if there is none."""
        if self._ids is None:
            self._ids = {secrets.hmac(token_id): token_id for token_id in tokens}
        token_id = self._ids.get(secret)
        if token_id is not None and token_id not in tokens:
            del self._ids[secret]
            token_id = None
        return token_id

    def add(self, secret: bytes, token_id: str) -> None:
        """Remember a token that is being made."""
        if self._ids is not None:
            self._ids[secret] = token_id

    def forget(self, secret: bytes) -> None:
        """Forget a token that is being removed."""
        if self._ids is not None:
            self._ids.pop(secret, None)


@attrs.frozen
class DecisionBasis:
    """One for as long as a controller is active. The sessions and the index of tokens are its only soft state."""

    settings: ControllerSettings
    sessions: BrokerSessions
    token_ids: TokenIds = attrs.field(factory=TokenIds)
