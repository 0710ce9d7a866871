"""The metrics page: what it shows, how it is written, and who serves it."""
