"""Code that only operators' commands use: reading the metadata log and its events, and recovery."""
