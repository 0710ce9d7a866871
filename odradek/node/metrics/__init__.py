"""The metrics page: what it tells, how it is written, and who serves it."""
