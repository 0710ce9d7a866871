"""Connections to the measured node. They log in if the address has a user: `USER:PASSWORD@HOST:PORT`."""

from __future__ import annotations

import socket

from bench.budget.frames import framed
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from testkit.raw_requests import connect as connect_bare

__all__ = ["connect"]


def connect(address: str) -> socket.socket:
    """Connect, without Nagle's delay, and log in if the address has a user. Raises `ConnectionError` if the node
    refuses the login.
    """
    login, _, bootstrap = address.rpartition("@")
    connection = connect_bare(bootstrap)
    if login:
        user, _, password = login.partition(":")
        for request, version in (
            (SaslHandshakeRequest("PLAIN"), 1),
            (SaslAuthenticateRequest(f"\0{user}\0{password}".encode()), 2),
        ):
            connection.sendall(framed(request, version))
            size = connection.recv(4, socket.MSG_WAITALL)
            answer = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
            if not answer:
                raise ConnectionError(f"{bootstrap} closed the connection during the login of user {user!r}")
    return connection
