"""The facts of the protocol as tables, and the generator that turns them into source."""
