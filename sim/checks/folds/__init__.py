"""Models of logs: each computes the state that a log's records give, without the product's code."""
