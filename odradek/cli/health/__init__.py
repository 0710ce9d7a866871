"""The health of a cluster: what commands ask the brokers, and the one judgement of its problems."""
