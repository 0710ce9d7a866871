"""Group coordinators: classic groups, committed offsets of all groups, lists and descriptions; `consumers/` has
the protocol of KIP-848.
"""
