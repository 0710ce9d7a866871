"""Handlers of requests that a broker only forwards to the controller: topics, elections, reassignments, ACLs,
tokens, features, registrations, voters. PORTED.

The request is forwarded unchanged, and the answer is returned unchanged. If no controller answers in time, the
broker answers with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.data_plane.handlers.administration.forwarder import Forwarder, names_many, sender_of
from odradek.security.acls.acl_requests import AclFilter, has_unknown
from odradek.security.doors.token_doors import refuse_token_request, token_request_refused
from odradek.serving.contract import Context, Result, Suspend
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError, RemoteProtocolError
from odradek.wire.messages.create_acls import CreateAclsRequest
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.delete_acls import DeleteAclsRequest

__all__ = ["AclForwardingHandler", "ForwardingHandler", "Refuse", "TokenForwardingHandler"]

Refuse = Callable[[Any, ErrorCode, str | None], Any]


class ForwardingHandler:
    """Handler that forwards requests to the active controller. The broker waits `request.timeout.ms` for the
    answer (KIP-590). If `waits_as_asked` is true, the timeout in the request also limits the wait; otherwise
    the broker ignores that timeout.
    """

    def __init__(self, forwarder: Forwarder, refuse: Refuse, *, waits_as_asked: bool = False) -> None:
        self._forwarder = forwarder
        self._refuse = refuse
        self._waits_as_asked = waits_as_asked

    def handle(self, context: Context, request: Any) -> Result:
        version, sender = context.api_version, sender_of(context)

        async def ask() -> Any:
            try:
                timeout_ms = request.timeout_ms if self._waits_as_asked else None
                return await self._forwarder.ask(sender, request, version, timeout_ms)
            except KafkaError as error:
                return await self._forwarder.refuse_in_turn(self._refuse, request, error)

        return Suspend(ask, is_long=_means_all(request) or names_many(request))


class TokenForwardingHandler(ForwardingHandler):
    """Handler of CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken (APIs 38 to 40).

    As in Kafka, the broker checks the client's rights, and the controller checks them again.
    """

    def handle(self, context: Context, request: Any) -> Result:
        principal = context.principal
        refused = token_request_refused(
            request, principal, may_ask=context.may_ask_for_tokens, allows=context.authorize
        )
        if (
            refused is None
            and isinstance(request, CreateDelegationTokenRequest)
            and any(each.principal_type != "User" for each in request.renewers)
        ):
            refused = refuse_token_request(request, ErrorCode.INVALID_PRINCIPAL_TYPE, principal)
        if refused is not None:
            answer: Result = refused
            return answer
        return super().handle(context, request)


class AclForwardingHandler(ForwardingHandler):
    """Handler of CreateAcls and DeleteAcls (APIs 30, 31).

    As in Kafka, an unknown number in an enum field closes the connection.
    """

    def handle(self, context: Context, request: Any) -> Result:
        """Forward a request. Raises `RemoteProtocolError` if an enum field has an unknown number."""
        if not names_many(request):
            _check_known(request)
            return super().handle(context, request)
        later, forward = context.for_later(), super().handle

        async def check_first() -> Any:
            await self._forwarder.beside_loop(_check_known, request)
            return forward(later, request)

        return Suspend(check_first, is_long=True)


def _check_known(request: CreateAclsRequest | DeleteAclsRequest) -> None:
    if isinstance(request, CreateAclsRequest):
        is_unknown = any(has_unknown(each) for each in request.creations)
    else:
        is_unknown = any(AclFilter.of(each).has_unknown for each in request.filters)
    if is_unknown:
        raise RemoteProtocolError(
            "the client's ACL request has an enum value that this version does not know"
        )


def _means_all(request: Any) -> bool:
    """True if the request is about all partitions of the cluster. Such a request has null as its list of
    topics.
    """
    lists = {ApiKey.ELECT_LEADERS: "topic_partitions", ApiKey.LIST_PARTITION_REASSIGNMENTS: "topics"}
    return request.API_KEY in lists and getattr(request, lists[request.API_KEY]) is None
