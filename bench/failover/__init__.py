"""How long nobody serves a partition when a node dies, hangs, or is only moved."""
