"""Campaigns of the simulator: many runs side by side, whose failures are grouped, minimised and reported. Entry point:
`command.py`.
"""
