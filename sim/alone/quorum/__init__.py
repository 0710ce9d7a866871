"""The metadata quorum's driver alone: replicas at work on simulated disks, under a schedule."""
