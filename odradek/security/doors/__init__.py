"""Doors: they stand before a handler, and let in the parts of a request for which the client has rights. PURE."""
