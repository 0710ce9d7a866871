"""The controller: requests in, metadata records out (decide), records in, a new image out (replay)."""
