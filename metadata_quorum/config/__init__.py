"""Configuration keys, their values, and which value holds."""
