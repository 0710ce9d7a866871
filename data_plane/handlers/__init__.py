"""Request handlers: one module per family of requests; `apis.py` lists them all."""
