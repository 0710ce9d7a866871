"""Handlers of group requests: FindCoordinator, members' requests, committed offsets, lists and descriptions."""
