"""The metrics page: its contents, its format, and its HTTP server."""
