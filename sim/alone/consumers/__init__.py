"""Groups of the consumer protocol alone, with members of both protocols."""
