"""The one table of the API: each address with its view. PURE.

`openapi.py` writes the description of the API from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.console.reading.shown_records import ShownRecord
from odradek.console.views.access import access, access_check
from odradek.console.views.brokers import brokers, quorum
from odradek.console.views.clients import clients
from odradek.console.views.cluster import overview, who_am_i
from odradek.console.views.groups import group, groups, topic_groups
from odradek.console.views.history import history
from odradek.console.views.messages import SearchEnd, SearchProgress, download, message, messages
from odradek.console.views.moves import moves
from odradek.console.views.route import Route, Words, downloaded, streamed, viewed
from odradek.console.views.topics import topic, topic_configs, topics
from odradek.console.views.transactions import transactions

__all__ = ["ROUTES", "route_of"]

ROUTES: Sequence[Route] = (
    viewed("/api/session", who_am_i),
    viewed("/api/overview", overview),
    viewed("/api/brokers", brokers),
    viewed("/api/quorum", quorum),
    viewed("/api/topics", topics),
    viewed("/api/topics/{name}", topic),
    viewed("/api/topics/{name}/configs", topic_configs),
    viewed("/api/topics/{name}/groups", topic_groups),
    streamed(
        "/api/messages",
        messages,
        {"record": ShownRecord, "progress": SearchProgress, "end": SearchEnd},
    ),
    viewed("/api/message", message),
    downloaded("/api/download", download),
    viewed("/api/groups", groups),
    viewed("/api/groups/{id}", group),
    viewed("/api/moves", moves),
    viewed("/api/transactions", transactions),
    viewed("/api/clients", clients),
    viewed("/api/access", access),
    viewed("/api/access/check", access_check),
    viewed("/api/history", history),
)
"""All views. Addresses without braces come before those with them."""


def route_of(parts: Sequence[str]) -> tuple[Route, Words] | None:
    """Find the route of a path, with the words that its parts give."""
    for route in ROUTES:
        words = route.match(parts)
        if words is not None:
            return route, words
    return None
