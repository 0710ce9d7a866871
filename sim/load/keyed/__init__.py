"""Workload: a compacted topic, with writers of few keys, a reader that keeps the newest record of each key, and
checks.
"""
