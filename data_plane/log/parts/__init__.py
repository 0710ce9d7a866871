"""The parts of a log, each with its own state: offsets, segments, durability, producers, leader epochs, cleaned
segments and swaps. A part imports nothing of the code above it.
"""
