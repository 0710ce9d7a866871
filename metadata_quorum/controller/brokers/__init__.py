"""Decisions about brokers: registration, heartbeats, log directories, and the ways in which brokers leave."""
