"""Parts of a log that own their state and import nothing of the code above them."""
