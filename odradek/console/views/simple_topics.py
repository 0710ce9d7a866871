"""The list of topics, in its simplest form."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import about
from odradek.console.shapes.queries import NoQuery

__all__ = ["TopicRow", "Topics", "topics"]


@attrs.frozen(kw_only=True)
class TopicRow:
    """A topic."""

    name: str = attrs.field(metadata=about("the name"))
    partitions: int = attrs.field(metadata=about("the number of partitions"))
    is_internal: bool = attrs.field(metadata=about("true for a topic of the brokers themselves"))


@attrs.frozen(kw_only=True)
class Topics:
    """The topics of the cluster."""

    total: int = attrs.field(metadata=about("the number of topics"))
    rows: Sequence[TopicRow] = attrs.field(metadata=about("the topics of this page"))


def topics(session: Session, query: NoQuery) -> Topics:
    """List the topics by name."""
    found = sorted(session.samples.latest()[1].picture.topics, key=lambda each: each.name)
    rows = [
        TopicRow(name=each.name, partitions=len(each.partitions), is_internal=each.is_internal)
        for each in found
    ]
    return Topics(total=len(rows), rows=rows)
