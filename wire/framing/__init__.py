"""The protocol of both ends of a connection, without sockets."""
