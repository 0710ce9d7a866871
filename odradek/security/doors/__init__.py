"""Doors: checks in front of handlers, which admit the parts of a request for which the client has rights. PURE."""
