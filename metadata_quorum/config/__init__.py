"""Configuration keys, their values, and the rules by which one value of several is in force."""
