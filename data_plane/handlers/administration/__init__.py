"""Handlers of requests about topics, configurations, logs and log directories, and of requests that the
controller decides.
"""
