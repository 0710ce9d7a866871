"""Storms of faults: the kinds of trouble, their timing, and the fault model that limits them."""
