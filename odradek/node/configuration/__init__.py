"""A node's configuration: from a properties file to what its parts take."""
