"""The client: one sans-IO core, a blocking shell over sockets and an async shell over the ports."""
