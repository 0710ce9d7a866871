"""Many runs of the simulator: side by side, recorded, grouped, made smaller and reported. Start with `command.py`."""
