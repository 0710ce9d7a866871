"""Both ends of a connection, without sockets."""
