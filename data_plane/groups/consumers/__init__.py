"""Groups of the consumer protocol (KIP-848): their state, the assignment of partitions, and the steps by
which members reach it.
"""
