"""Serves the page: HTTP, its forms, TLS and logins, and the health of the node."""
