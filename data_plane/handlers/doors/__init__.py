"""Rights of a broker's clients: a door before each handler."""
