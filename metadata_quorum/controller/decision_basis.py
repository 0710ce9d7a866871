"""The inputs of a decision besides image, request and context: the controller's settings, its soft state, and
an index of delegation tokens. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.unclean_recovery import UncleanRecovery
from odradek.security.tokens import TokenSecrets

__all__ = ["DecisionBasis", "TokenIds"]

Tokens: TypeAlias = Mapping[str, Any]
"""The delegation tokens in an image, by their ids."""


class TokenIds:
    """An index of delegation tokens by their secrets and by their owners. The first call builds it from the
    image.

    A token that is no longer in the image is skipped, and is then removed from the index.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, str] | None = None
        self._of_owner: dict[str, dict[str, None]] = {}

    def find(self, secret: bytes, tokens: Tokens, secrets: TokenSecrets) -> str | None:
        """Return the id of the token with this secret; None if no token has this secret."""
        ids = self._made_of(tokens, secrets)
        token_id = ids.get(secret)
        if token_id is not None and token_id not in tokens:
            del ids[secret]
            token_id = None
        return token_id

    def held(self, owner: str, at_least: int, tokens: Tokens, secrets: TokenSecrets) -> list[str]:
        """List the ids of an owner's tokens, the oldest first. If the owner has fewer than `at_least` tokens,
        the result is empty, because the caller does not need these ids.
        """
        self._made_of(tokens, secrets)
        known = self._of_owner.get(owner, {})
        if len(known) < at_least:
            return []
        known = self._of_owner[owner] = {token_id: None for token_id in known if token_id in tokens}
        return list(known)

    def _made_of(self, tokens: Tokens, secrets: TokenSecrets) -> dict[bytes, str]:
        if self._ids is None:
            self._ids = {secrets.hmac(token_id): token_id for token_id in tokens}
            for token_id in sorted(tokens, key=lambda each: (tokens[each].issue_timestamp, each)):
                self._of_owner.setdefault(tokens[token_id].owner, {})[token_id] = None
        return self._ids

    def add(self, secret: bytes, token_id: str, owner: str) -> None:
        """Add a token to the index, because the present decision creates it."""
        if self._ids is not None:
            self._ids[secret] = token_id
            self._of_owner.setdefault(owner, {})[token_id] = None

    def forget(self, secret: bytes, owner: str) -> None:
        """Remove a token from the index, because the present decision removes it."""
        if self._ids is not None:
            token_id = self._ids.pop(secret, None)
            known = self._of_owner.get(owner, {})
            if token_id is not None:
                known.pop(token_id, None)
            if not known:
                self._of_owner.pop(owner, None)


@attrs.frozen
class DecisionBasis:
    """The settings and the soft state of an active controller. A new object is made each time a controller
    becomes active.

    The soft state consists of the sessions, the index of tokens and the reports of logs.
    """

    settings: ControllerSettings
    sessions: BrokerSessions
    token_ids: TokenIds = attrs.field(factory=TokenIds)
    recovery: UncleanRecovery = attrs.field(init=False)

    @recovery.default
    def _make_recovery(self) -> UncleanRecovery:
        settings = self.settings
        return UncleanRecovery(
            is_enabled=settings.unclean_recovery_manager_enabled,
            timeout_ms=settings.unclean_recovery_timeout_ms,
            sessions=self.sessions,
        )
