"""Constants of the product that some runs change, mostly to small values, so that their limits are reached."""
