"""Decisions about brokers: registration, heartbeats, their log directories, and how they leave."""
