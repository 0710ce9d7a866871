"""What a field of a query or an answer says about itself: its text and its bounds. PURE.

    @attrs.frozen(kw_only=True)
    class TopicsQuery:
        page: int = attrs.field(default=1, metadata=about("the page, from 1", minimum=1))

A name that is a keyword of Python ends with `_` in the class, and without it in the API: `from_` is `from`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

__all__ = ["TOPIC_NAME", "FieldAbout", "about", "about_of", "public_name"]

_KEY = "console"
TOPIC_NAME = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
"""The pattern of the name of a topic, for fields of queries."""


@attrs.frozen
class FieldAbout:
    """The text and the bounds of a field. Bounds are checked in queries. In answers they are only described."""

    text: str
    minimum: int | None = None
    maximum: int | None = None
    """The greatest number, or the greatest number of characters of a text."""
    choices: Sequence[str] = ()
    pattern: str | None = None
    """A regular expression of ECMA-262 and Python, from `^` to `$`, which a text matches."""


def about(
    text: str,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: Sequence[str] = (),
    pattern: str | None = None,
) -> Mapping[str, FieldAbout]:
    """Make the metadata of a field. `maximum` limits a number, or the number of characters of a text."""
    return {_KEY: FieldAbout(text, minimum, maximum, choices, pattern)}


def about_of(metadata: Mapping[object, object]) -> FieldAbout:
    """Return what a field says about itself; an empty text, if it lacks such metadata."""
    found = metadata.get(_KEY)
    return found if isinstance(found, FieldAbout) else FieldAbout("")


def public_name(name: str) -> str:
    """Return the name of a field in the API."""
    return name.rstrip("_")
