"""The operations that a client may do, as answers list them (KIP-430), and the kinds of endpoints in DescribeCluster."""

from __future__ import annotations

NOT_REQUESTED = -2147483648
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe configs, alter configs: all that a topic has (KIP-430)."""
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
BROKERS_ENDPOINT = 1
CONTROLLERS_ENDPOINT = 2
