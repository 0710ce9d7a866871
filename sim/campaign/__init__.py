"""Many runs of the simulator: side by side, remembered, grouped, made smaller and told. Start with `command.py`."""
