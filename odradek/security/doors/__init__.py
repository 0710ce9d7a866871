"""Doors: what stands before a handler, and lets in what the client may ask. PURE."""
