"""Pages of long lists. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import attrs

from odradek.console.shapes.fields import about

__all__ = ["PAGE", "Page", "page_of"]

T = TypeVar("T")

PAGE = about("the page, from 1", minimum=1, maximum=1_000_000)
"""The metadata of the field `page` of a query."""


@attrs.frozen
class Page(Generic[T]):
    """A page of a list. `pages` is at least 1."""

    total: int
    page: int
    pages: int
    rows: Sequence[T]


def page_of(rows: Sequence[T], page: int, size: int) -> Page[T]:
    """Cut a page out of a list. A page behind the last one is empty."""
    begin = (page - 1) * size
    return Page(len(rows), page, max(1, -(-len(rows) // size)), rows[begin : begin + size])
