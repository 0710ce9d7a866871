"""Answers that go on: events for pages that listen, and downloads."""
