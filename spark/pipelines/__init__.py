"""Spark jobs for users to run, or to copy as examples."""
