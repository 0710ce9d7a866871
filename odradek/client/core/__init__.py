"""The client without sockets or threads: what every operation, producer and consumer stands on. PURE."""
