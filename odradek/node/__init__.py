"""A whole node, made of its parts: configuration, connections, metrics, start and stop. Start reading at
`run_node.run_node`.
"""
