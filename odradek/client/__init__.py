"""The client library: one core without IO, blocking clients over sockets, and async clients over the ports."""
