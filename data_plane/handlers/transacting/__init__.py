"""Handlers of requests of transactional producers, and of requests that describe transactions."""
