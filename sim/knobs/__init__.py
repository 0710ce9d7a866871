"""Constants of the product that runs draw small, so that their limits are reached."""
