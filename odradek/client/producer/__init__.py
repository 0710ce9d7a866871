"""The producer without threads: batches, partitions of records, sending and repeating, transactions."""
