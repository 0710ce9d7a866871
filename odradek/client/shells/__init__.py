"""The clients that users import: blocking and async clients on the same core."""
