"""Simulation of one consumer group with members of the consumer and of the classic protocol, without whole nodes."""
