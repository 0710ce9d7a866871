"""The node that the tests of logins share."""

from tests.security.secured_node import secured

__all__ = ["secured"]
