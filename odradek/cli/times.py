"""Parsing and printing of times: a moment, or a span of time before now."""

from __future__ import annotations

import argparse
import re
import time

__all__ = ["TIME_HELP", "moment", "moment_text", "span"]

TIME_HELP = "ISO 8601 like 2026-01-31T12:00, a span back from now like 90s, 15m, 2h, 7d, or @milliseconds"
_AT = re.compile(r"@[0-9]{1,18}")
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def moment(text: str) -> int:
    """Parse a time into milliseconds since 1970: ISO 8601 (in the local zone unless it names one), a span
    before now (15m), or @MILLISECONDS.

    A time before 1970 becomes 0, because requests for offsets use -1 for the end and -2 for the beginning.
    """
    if _AT.fullmatch(text):
        return int(text[1:])
    if _SPAN.fullmatch(text):
        return max(0, time.time_ns() // 1_000_000 - span(text))
    from datetime import datetime

    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time ({TIME_HELP})") from None


def span(text: str) -> int:
    """Parse a span of time like 90s, 15m, 2h, 7d into milliseconds."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a span of time (for example 90s, 15m, 2h, 7d)")
    return int(float(found[1]) * _MILLISECONDS[found[2]])


def moment_text(time_ms: int) -> str:
    """Format a time in milliseconds since 1970 for people, in the local zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1000))
