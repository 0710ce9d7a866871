"""What brokers and controllers need to serve requests: the contract of handlers, the API table, slices, timers."""
