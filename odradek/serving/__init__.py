"""The parts with which brokers and controllers serve requests: the contract of handlers, the API table, slices,
timers.
"""
