"""Handlers of transactional producers' requests, and of descriptions of transactions."""
