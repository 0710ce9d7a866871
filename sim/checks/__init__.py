"""The checks of a run: at every moment, and at its end."""
