"""Named states of the product, and the census of those that runs have reached."""
