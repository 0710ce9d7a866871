"""The processor time of commands, simulated runs and checkers."""
