"""Constants of the product that some runs change. Most changed values are small, so that runs reach the limits."""
