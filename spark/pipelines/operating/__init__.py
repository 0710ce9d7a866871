"""The pipeline that runs several queries in one application, restarts them, and raises alerts about them."""
