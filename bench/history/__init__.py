"""Benchmarks over time: a JSON file for each recorded run, and the page that draws them."""
