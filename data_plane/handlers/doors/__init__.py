"""What a broker's clients may ask: a door before each handler."""
