"""The simulated workload: clients and operators that act during a run."""
