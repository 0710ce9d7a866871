"""Configurations of topics, brokers and groups: how commands change them, and which keys fight."""
