"""The kit that tests and measurements share: servers as processes, requests by hand. It is never installed."""
