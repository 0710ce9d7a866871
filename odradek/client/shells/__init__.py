"""The clients that users import, blocking and async, over the same core."""
