"""The metrics page: its contents, its format, and the server for it."""
