"""The command line `odradek`, with one module for each group of commands."""
