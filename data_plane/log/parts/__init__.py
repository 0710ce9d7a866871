"""Parts of a log that own their state and know nothing of what stands above them."""
