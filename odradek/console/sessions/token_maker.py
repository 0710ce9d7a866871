"""Creates, renews and expires the delegation tokens (KIP-48, KIP-373) of users who have shown a certificate. SHELL.

The console does not have the key of such a user. Its own user needs the right CREATE_TOKENS on the resource USER of that
name. Then it creates a token whose owner is the user, and clients with this token have exactly the rights of the owner.

A token lasts `TOKEN_SECONDS` after each renewal. So the tokens of a console that has died soon end by themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping

import attrs

from odradek.client.admin import ConfigResource, DelegationToken, ResourceType
from odradek.client.errors import AuthenticationFailed, ClientError
from odradek.client.shells.admin_client import Admin
from odradek.console.sessions.session_table import LIFE_SECONDS_MAX
from odradek.console.shapes.view_errors import ViewError
from odradek.security.acls.authorizer import parse_principals
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["TOKEN_SECONDS", "TokenGone", "TokenMaker"]

TOKEN_SECONDS = 15 * 60.0
"""The seconds for which a token lasts after its creation and after each renewal."""
ASK_SECONDS_MAX = 10.0
_LAST_SECONDS_MAX = 2.0
"""The time for the last requests, when the console ends."""
_TRIES_MAX = 50
_PAUSE_SECONDS = 0.1
_SUPER_USERS = "super.users"
_ANONYMOUS = "User:ANONYMOUS"
_GONE = frozenset(
    {
        ErrorCode.DELEGATION_TOKEN_EXPIRED,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
    }
)


class TokenGone(Exception):
    """The cluster does not know the token any more, or it has expired."""


@attrs.define(eq=False)
class TokenMaker:
    """The console's own user, as a client. Its methods block, and may be called from any thread."""

    _properties: Mapping[str, object] = attrs.field(repr=False)
    """The keys of the client."""
    _super_users: Collection[str] = ()
    """The super users that the console's node knows."""
    _seconds: float = TOKEN_SECONDS
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    _open: Admin | None = attrs.field(default=None, init=False)
    _own_principal: str = attrs.field(default="", init=False)

    @property
    def seconds(self) -> float:
        """The seconds for which a token lasts after each renewal."""
        return self._seconds

    def create(self, owner: str) -> DelegationToken:
        """Create a token for this principal. Raises `ViewError` with a sentence that names the missing part. Raises `KafkaError`
        and `ClientError` if the cluster cannot answer just now.
        """
        if owner in (_ANONYMOUS, "User:"):
            raise ViewError(
                403,
                "CERTIFICATE_WITHOUT_NAME",
                f"your certificate stands for {owner}, which is no user: the rules in "
                "ssl.principal.mapping.rules of the console's listener make that name",
            )
        try:
            admin = self._admin()
            if owner in self._super_users or owner in self._super_users_of_brokers(admin):
                raise ViewError(
                    403,
                    "SUPER_USER",
                    f"your certificate stands for {owner}, who is a super user: nobody becomes one by a token of the "
                    "console, so log in with a password",
                )
            token = admin.create_delegation_token(
                owner=owner, renewers=[self._own(admin)], max_lifetime_ms=int(LIFE_SECONDS_MAX * 1000)
            )
            self._shorten(admin, token)
        except AuthenticationFailed as error:
            raise _own_user_refused(error) from error
        except KafkaError as error:
            if error.code.retriable:
                raise
            raise _refusal(error, owner, self._own_principal) from error
        return token

    def _shorten(self, admin: Admin, token: DelegationToken) -> None:
        """Let a new token last for `seconds`, because its first end is that of the cluster, which may be a day away. Raises
        `KafkaError`, `ClientError`.
        """
        tries = _TRIES_MAX
        while True:
            try:
                admin.renew_delegation_token(token.hmac, period_ms=int(self._seconds * 1000))
                return
            except KafkaError as error:
                tries -= 1
                # A controller of Apache Kafka finds a token only some moments after it has created it.
                if error.code is not ErrorCode.DELEGATION_TOKEN_NOT_FOUND or not tries:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def renew(self, token: DelegationToken) -> None:
        """Let a token last for `seconds` from now. Raises `TokenGone`, `KafkaError`, `ClientError`."""
        try:
            self._admin().renew_delegation_token(token.hmac, period_ms=int(self._seconds * 1000))
        except KafkaError as error:
            if error.code in _GONE:
                raise TokenGone(str(error)) from error
            raise

    def expire(self, token: DelegationToken, *, is_last: bool = False) -> None:
        """End a token now. If it has ended before, this is no error. Raises `KafkaError` and `ClientError`."""
        try:
            self._admin().expire_delegation_token(
                token.hmac, timeout=_LAST_SECONDS_MAX if is_last else ASK_SECONDS_MAX
            )
        except KafkaError as error:
            if error.code not in _GONE:
                raise

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    def _admin(self) -> Admin:
        """Return the client, which connects at its first request."""
        with self._lock:
            if self._open is None:
                timeout = int(ASK_SECONDS_MAX * 1000)
                self._open = Admin(
                    {
                        **self._properties,
                        "client.id": "odradek-console-tokens",
                        "request.timeout.ms": timeout,
                        "default.api.timeout.ms": timeout,
                    }
                )
            return self._open

    def _own(self, admin: Admin) -> str:
        """Return the principal of the console's own user. Only the owner of a token and its renewers may renew it, and no
        request just asks for the own name. But each may create tokens for himself, and the answer names the owner.
        """
        if not self._own_principal:
            self._own_principal = admin.create_delegation_token(max_lifetime_ms=1).owner
        return self._own_principal

    def _super_users_of_brokers(self, admin: Admin) -> Collection[str]:
        """Ask a broker for the super users; empty if it does not say. Raises `AuthenticationFailed`."""
        try:
            (first, *_) = admin.describe_cluster().brokers
            (found,) = admin.describe_configs(
                [ConfigResource(ResourceType.BROKER, str(first.node_id))], [_SUPER_USERS]
            )
            return parse_principals("".join(each.value or "" for each in found.entries))
        except AuthenticationFailed:
            raise
        except (KafkaError, ClientError, ValueError):
            return ()


def _own_user_refused(error: AuthenticationFailed) -> ViewError:
    return ViewError(
        502,
        "CONSOLE_REFUSED",
        f"the brokers do not let the console's own user in, who makes tokens for certificates ({error}): check "
        "odradek.console.tokens.* in the console's file, or log in with a password",
    )


def _refusal(error: KafkaError, owner: str, own: str) -> ViewError:
    """Return what to do after a refusal to create a token."""
    name = owner.partition(":")[2]
    mine = own.partition(":")[2] or "the console's user"
    match error.code:
        case ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED:
            return ViewError(
                403,
                "CREATE_TOKENS_NEEDED",
                f"the console's user {mine} lacks the right CREATE_TOKENS for {owner}: `odradek acl add --user "
                f"'{mine}' --operation create-tokens --user-resource '{owner}'` gives it",
            )
        case ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
            return ViewError(
                501,
                "TOKENS_DISABLED",
                "the brokers have no delegation.token.secret.key, so nobody can log in here by certificate: set it on "
                "all nodes, or log in with a password",
            )
        case ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED:
            return ViewError(
                502,
                "CONSOLE_REFUSED",
                "the console's own user must log in by SASL or a certificate to create tokens: check "
                "odradek.console.tokens.* in the console's file",
            )
        case _:
            return ViewError(
                502,
                error.code.name,
                f"the cluster has created no token for {name} ({error.message or error.code.name}): log in with a password",
            )
