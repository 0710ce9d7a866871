"""The process of a node and those that watch it: signals, and the service manager."""
