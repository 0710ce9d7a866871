"""Troubles of a run: their kinds, their times, and the fault model that bounds them."""
