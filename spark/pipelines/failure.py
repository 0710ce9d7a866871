"""The exception with which a job fails; jobs without Spark use it as well."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["Failed", "require"]


class Failed(Exception):
    """Raised if a job cannot continue. The message is one sentence for the user."""


def require(module: str, sentence: str) -> None:
    """Raise `Failed` with a sentence if a top-level module is not installed."""
    try:
        is_there = find_spec(module) is not None
    except (
        ValueError
    ):  # a module without a spec, such as one that a test has put in the place of the real one
        is_there = False
    if not is_there:
        raise Failed(sentence)
