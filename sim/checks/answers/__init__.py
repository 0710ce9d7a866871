"""Answers to clients, held against the world at the moment when they are given."""
