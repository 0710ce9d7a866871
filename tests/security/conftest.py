"""The nodes that the tests of logins and of TLS share."""

from tests.security.secured_node import secured
from tests.security.tls.tls_node import tls_node

__all__ = ["secured", "tls_node"]
