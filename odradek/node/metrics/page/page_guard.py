"""The protection of the metrics page: TLS, and logins if they are configured. PORTED."""

from __future__ import annotations

import attrs

from odradek.env.ports import Env
from odradek.node.configuration.metrics_config import METRICS, MetricsConfig
from odradek.node.connections.entrance import Encryption
from odradek.node.entrances import Entrances
from odradek.node.metrics.page.page_logins import PageLogins
from odradek.security.acls.authorizer import Authorizer
from odradek.security.audit.auditor import Auditor

__all__ = ["PageGuard", "page_guard"]


@attrs.frozen
class PageGuard:
    """The TLS and the logins of the page. Each is None if it is not configured."""

    encryption: Encryption | None = None
    logins: PageLogins | None = None
    auditor: Auditor | None = None
    """The auditor, which records failed handshakes."""


def page_guard(
    env: Env, settings: MetricsConfig, entrances: Entrances, authorizer: Authorizer | None, auditor: Auditor
) -> PageGuard:
    """Make the protection that the configuration demands for the page."""
    logins = PageLogins(env, entrances.keys_of, authorizer, auditor) if settings.has_login else None
    return PageGuard(entrances.encryption(METRICS), logins, auditor)
