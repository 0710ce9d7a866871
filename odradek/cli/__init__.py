"""The command line: `odradek`, one module per group of commands."""
