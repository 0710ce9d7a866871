"""Configuration keys, their values, and the rules that choose one value if a key is set in several places."""
