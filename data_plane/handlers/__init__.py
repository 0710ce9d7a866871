"""Request handlers: one module per family of requests; `build.build_table` lists them all."""
