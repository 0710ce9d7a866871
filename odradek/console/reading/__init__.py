"""Reads records of a topic for people: from any place, with a filter, with the state of each record's transaction."""
