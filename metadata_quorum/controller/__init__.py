"""The controller: it decides requests by making metadata records, and computes the next image by replaying
the records.
"""
