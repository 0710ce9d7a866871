"""Answers that a controller and a broker give alike, out of the image that the node has."""
