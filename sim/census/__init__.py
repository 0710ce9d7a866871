"""Named states of the product, and the census: how often runs have reached each of them."""
