"""The connections of a node: they receive bytes, dispatch frames to request handlers, and send the answers."""
