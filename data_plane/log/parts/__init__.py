"""The parts of a log. Each owns its state, and imports nothing of the code above it."""
