"""A node's configuration: from a properties file to the arguments of its parts."""
