"""Our client library in comparison with other Python clients."""
