"""Parts of a log that own their state and know nothing of the code above them."""
