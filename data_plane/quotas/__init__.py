"""Client quotas of a broker: what each client has used and how long it must wait, and connection rates of
addresses.
"""
