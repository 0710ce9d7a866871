"""The bit fields of operations that a client may do (KIP-430), and the endpoint types of DescribeCluster."""

from __future__ import annotations

NOT_REQUESTED = -2147483648
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""All operations on topics as bits: read, write, create, delete, alter, describe, describe configs, alter configs
(KIP-430).
"""
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
BROKERS_ENDPOINT = 1
CONTROLLERS_ENDPOINT = 2
