"""Help for hands at a terminal: suggestions, completion of words, lists that are drawn again, the live view."""
