"""The parts that the coordinators of groups and of transactions share: shards over the led partitions of one
topic.
"""
