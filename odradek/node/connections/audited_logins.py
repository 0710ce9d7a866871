"""Lines of the audit log about logins at one listener: the first login of a connection, and its renewals. PURE."""

from __future__ import annotations

from odradek.security.audit.auditor import TLS, Auditor
from odradek.security.sasl_server import Login
from odradek.serving.contract import Context

__all__ = ["AuditedLogins"]


class AuditedLogins:
    """Reports logins at a listener to the auditor, both successful and failed ones."""

    def __init__(self, listener: str, auditor: Auditor | None) -> None:
        self._listener = listener
        self._auditor = auditor

    def succeeded(self, context: Context, tls_subject: str | None) -> None:
        """Report the first login of a connection. From now on, the renewals of this login are reported, too."""
        auditor = self._auditor
        if auditor is None:
            return
        login = context.login
        mechanism = TLS
        if isinstance(login, Login):
            mechanism = login.mechanism
            if login.expires:
                address = context.client_address
                login.on_end = lambda ended: self._renewed(auditor, ended, address, tls_subject)
        auditor.logged_in(
            self._listener, context.client_address, context.principal, mechanism, tls_subject=tls_subject
        )

    def failed(self, context: Context, reason: str, tls_subject: str | None) -> None:
        """Report a connection that ends without a login. The line names a mechanism only if the client has
        chosen one already.
        """
        if self._auditor is not None:
            login = context.login
            claimed, mechanism = None, TLS
            if isinstance(login, Login):
                claimed, mechanism = login.claimed or None, login.mechanism
            self._auditor.login_failed(
                self._listener,
                context.client_address,
                claimed,
                mechanism or None,
                reason,
                tls_subject=tls_subject,
            )

    def _renewed(self, auditor: Auditor, login: Login, address: str, tls_subject: str | None) -> None:
        if login.is_refused:
            auditor.login_failed(
                self._listener,
                address,
                login.claimed or None,
                login.mechanism,
                login.failure,
                tls_subject=tls_subject,
                is_renewal=True,
            )
        else:
            auditor.logged_in(
                self._listener,
                address,
                login.principal,
                login.mechanism,
                tls_subject=tls_subject,
                is_renewal=True,
            )
