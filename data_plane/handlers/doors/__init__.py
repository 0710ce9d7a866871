"""The doors of a broker's handlers: which rights of a client each kind of request needs, and how the rest is
refused.
"""
