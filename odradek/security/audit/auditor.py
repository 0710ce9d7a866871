"""Logins, refusals and changes that a node's parts report: they are counted for the metrics, and written to the audit
log. PURE.

A node has one `Auditor`, which only the event loop calls. If the audit log is off, the auditor only counts.
Each method makes lines of one kind, and docs/security.md explains their fields. No secret is ever an argument
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from odradek.security.acls.authorizer import Denial, Judgement, Reason, Rights
from odradek.security.acls.rules import Operation, ResourceType
from odradek.security.audit.audit_lines import (
    CHANGED,
    DENIED,
    LOGGED_IN,
    LOGIN_FAILED,
    Payer,
    PreparedLine,
    Value,
    prepared,
)
from odradek.wire.api import api_name

__all__ = ["TLS", "Auditor", "Lines"]

TLS = "TLS"
"""The name of the mechanism if the TLS handshake is the login, with or without a client certificate."""
PREPARED_MAX = 1_000
"""The maximum number of lines about refusals that are kept for reuse."""
COMMITTED, UNKNOWN = "committed", "unknown"


_api_name = cache(api_name)


class Lines(Protocol):
    """The part of `AuditLog` that this module uses."""

    def note(self, event: str, /, payer: Payer | None = None, count: int = 1, **fields: Value) -> None: ...

    def put(self, line: PreparedLine, count: int = 1) -> None: ...


class Auditor:
    """Counts logins, refusals and changes, and writes them to the audit log if there is one."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self.lines: Lines | None = None
        """The audit log; None if it is off."""
        self._prepared: dict[tuple[str, str, str, str, Denial], PreparedLine] = {}
        """Lines about refusals under the rules of `_generation`, kept because most refusals repeat."""
        self._generation = -1
        self.denials: Counter[str] = Counter()
        """The number of refused operations on resources, by API."""
        self.logins: Counter[tuple[str, str, bool]] = Counter()
        """The number of logins by listener, mechanism (empty: none was chosen) and success."""

    def denied(self, rights: Rights, api_key: int, denials: Sequence[Denial], further: int) -> None:
        """Called when a request of the API `api_key` was refused some rights. `denials` are the recorded
        refusals, and `further` is the number of refusals that were not recorded.
        """
        api = _api_name(api_key)
        self.denials[api] += len(denials) + further
        lines = self.lines
        if lines is None:
            return
        known = self._prepared
        if self._generation != rights.generation or len(known) >= PREPARED_MAX:
            self._generation = rights.generation
            known.clear()
        for denial in denials:
            key = (rights.principal, rights.host, rights.listener, api, denial)
            line = known.get(key)
            if line is None:
                line = known[key] = _denial(rights, api, denial)
            lines.put(line)
        if further:
            lines.note(
                DENIED,
                Payer(rights.principal, rights.host, (api, "further")),
                count=further,
                principal=rights.principal,
                address=rights.host,
                listener=rights.listener or None,
                api=api,
                reason="count says how many more resources of the request were denied",
            )

    def logged_in(
        self,
        listener: str,
        address: str,
        principal: str,
        mechanism: str,
        *,
        tls_subject: str | None = None,
        is_renewal: bool = False,
    ) -> None:
        """Record that a client has authenticated, or has renewed its login."""
        self.logins[listener, mechanism, True] += 1
        if self.lines is not None:
            self.lines.note(
                LOGGED_IN,
                Payer(principal, address, (address, listener, mechanism)),
                principal=principal,
                address=address,
                listener=listener,
                mechanism=mechanism,
                tls_subject=tls_subject,
                renewal=is_renewal,
            )

    def login_failed(
        self,
        listener: str,
        address: str,
        claimed: str | None,
        mechanism: str | None,
        reason: str,
        *,
        tls_subject: str | None = None,
        is_renewal: bool = False,
    ) -> None:
        """Record that a client's login was refused. `claimed` is the name that the client gave, `reason` a text without
        secrets.
        """
        self.logins[listener, mechanism or "", False] += 1
        if self.lines is not None:
            self.lines.note(
                LOGIN_FAILED,
                # The claimed principal is not proven, so it does not pay for the bytes.
                Payer(None, address),
                claimed=claimed,
                address=address,
                listener=listener,
                mechanism=mechanism,
                tls_subject=tls_subject,
                renewal=is_renewal,
                reason=reason,
            )

    def changed(
        self,
        principal: str | None,
        address: str | None,
        client_id: str | None,
        api: str,
        *,
        epoch: int,
        first_offset: int,
        last_offset: int,
        is_committed: bool,
    ) -> None:
        """Record that the active controller has written these records to the metadata log at a client's request.

        If `principal` is None, this node itself made the request. If the records are not committed, the controller
        has lost its leadership meanwhile. Offset and epoch then show whether the log has the records.
        """
        if self.lines is not None:
            self.lines.note(
                CHANGED,
                None if principal is None else Payer(principal, address, (api, is_committed)),
                principal=f"node {self._node_id}" if principal is None else principal,
                address=address,
                client_id=client_id,
                api=api,
                epoch=epoch,
                first_offset=first_offset,
                last_offset=last_offset,
                outcome=COMMITTED if is_committed else UNKNOWN,
            )


def _denial(rights: Rights, api: str, denial: Denial) -> PreparedLine:
    operation = _name(Operation, denial.operation)
    resource_type = _name(ResourceType, denial.resource_type)
    return prepared(
        DENIED,
        Payer(rights.principal, rights.host, (api, operation, resource_type)),
        principal=rights.principal,
        address=rights.host,
        listener=rights.listener or None,
        api=api,
        operation=operation,
        resource_type=resource_type,
        resource=denial.name,
        reason=_reason(rights.why(denial)),
    )


def _reason(judgement: Judgement) -> str:
    if judgement.is_allowed:
        # A rule has changed between the refusal and the writing of this line.
        return "the rule that denied it has changed since"
    if judgement.reason is Reason.RULE and judgement.rule is not None:
        return f"rule: {judgement.rule}"
    return judgement.reason.value


def _name(kind: type[Operation | ResourceType], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)
