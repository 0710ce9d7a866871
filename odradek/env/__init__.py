"""The ports, through which code reaches the world, and their binding to this machine."""
