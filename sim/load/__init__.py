"""The simulated workload: clients that act during a run; `operators/` has the operators."""
