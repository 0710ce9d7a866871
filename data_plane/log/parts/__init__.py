"""The parts of a log: each owns its state, and imports nothing of the code above it."""
