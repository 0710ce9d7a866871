"""A compacted topic at work: writers of few keys, a reader that keeps a table, and checks of both."""
