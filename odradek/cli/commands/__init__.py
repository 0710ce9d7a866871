"""The commands: one module per group, with a `register` that adds its parsers."""
