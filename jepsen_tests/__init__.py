"""Tests of real node processes under injected faults, with independent Kafka clients."""
