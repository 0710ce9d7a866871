"""The columns of a screen that a text takes: East Asian letters take two, and combining marks none. PURE."""

from __future__ import annotations

import unicodedata

__all__ = ["cut_to_columns", "left_in_columns", "right_in_columns", "width_of"]


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width_of(text: str) -> int:
    """Count the columns of a text without codes of colours."""
    return len(text) if text.isascii() else sum(map(_width, text))


def cut_to_columns(text: str, columns: int) -> str:
    """Cut a text without codes of colours, so that it takes at most so many columns."""
    if text.isascii():
        return text[: max(0, columns)]
    width = 0
    for place, character in enumerate(text):
        width += _width(character)
        if width > columns:
            return text[:place]
    return text


def left_in_columns(text: str, columns: int) -> str:
    """Add blanks behind a text, until it takes so many columns."""
    return text + " " * (columns - width_of(text))


def right_in_columns(text: str, columns: int) -> str:
    """Add blanks before a text, until it takes so many columns."""
    return " " * (columns - width_of(text)) + text
