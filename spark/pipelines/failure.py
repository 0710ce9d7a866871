"""The exception with which a job fails; jobs without Spark use it as well."""

from __future__ import annotations

__all__ = ["Failed"]


class Failed(Exception):
    """Raised if a job cannot continue. The message is one sentence for the user."""
