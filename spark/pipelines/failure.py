"""The failure of a job, for all jobs, those without Spark too."""

from __future__ import annotations

__all__ = ["Failed"]


class Failed(Exception):
    """The job cannot go on; the message is one sentence for the user."""
