"""Simulation of the metadata quorum's driver: replicas on simulated disks, without whole nodes."""
