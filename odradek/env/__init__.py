"""The world, as code may see it: the ports, and their binding to this machine."""
