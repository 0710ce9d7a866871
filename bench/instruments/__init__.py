"""The instruments that several measurements share."""
