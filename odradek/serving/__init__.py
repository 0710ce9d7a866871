"""The parts with which brokers and controllers serve requests: contract of handlers, API table, slices, timers."""
