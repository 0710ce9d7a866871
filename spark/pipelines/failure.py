"""The exception with which a job fails; jobs without Spark use it as well."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["Failed", "require"]


class Failed(Exception):
    """Raised if a job cannot continue. The message is one sentence for the user."""


def require(module: str, sentence: str) -> None:
    """Raise `Failed` with a sentence if a top-level module is not installed."""
    if find_spec(module) is None:
        raise Failed(sentence)
