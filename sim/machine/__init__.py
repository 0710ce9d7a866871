"""The simulated environment of nodes: time, network, disks, processes, and the run of a simulation."""
