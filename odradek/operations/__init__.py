"""Reading the metadata log and its events; only operators' commands use this."""
