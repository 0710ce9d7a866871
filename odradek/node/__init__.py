"""A node put together: configuration, server loop, life cycle. `run_node.run_node` is the way in."""
