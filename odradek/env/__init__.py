"""The ports through which a node reaches clocks, disks, the network and other processes, and their implementation on
this machine.
"""
