"""Real processes under faults, driven by independent clients."""
