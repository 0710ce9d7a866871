"""Fixtures of the console's tests: a node with logins, shared with the tests of security."""

from __future__ import annotations

from tests.security.secured_node import secured

__all__ = ["secured"]
