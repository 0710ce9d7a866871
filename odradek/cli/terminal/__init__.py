"""Help for hands at a terminal: completion of words, and the live view."""
