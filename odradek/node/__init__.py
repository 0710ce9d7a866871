"""A whole node, made of its parts: directories, registration, certificates, logins, start and stop. Start
reading at `run_node.run_node`.
"""
