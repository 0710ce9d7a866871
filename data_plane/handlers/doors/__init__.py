"""The rights of a broker's clients: for each handler a door, which checks the client's rights first."""
