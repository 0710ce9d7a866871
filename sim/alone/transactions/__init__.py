"""Transaction coordinators alone."""
