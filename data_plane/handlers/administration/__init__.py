"""Handlers of requests that describe or change topics, configurations and logs."""
