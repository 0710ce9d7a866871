"""What views that go on write to: from a thread to a connection."""
