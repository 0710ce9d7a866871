"""The client without sockets or threads: connections, calls, retries, metadata, configuration keys, operations.
Every operation, producer and consumer is built on it. PURE.
"""
