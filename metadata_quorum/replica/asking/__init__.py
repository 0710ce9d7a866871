"""What a replica of the quorum asks others, and where it finds them."""
