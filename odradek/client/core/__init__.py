"""The client without sockets or threads. Every operation, producer and consumer is built on it. PURE."""
