"""The client without sockets or threads, on which every operation, producer and consumer is built. PURE."""
