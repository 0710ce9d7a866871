"""The command line `odradek`: its entry point and what commands share (options, clients, output); `commands/`
has the groups of commands.
"""
