"""Groups of the consumer protocol (KIP-848): their state, who gets which partitions, and how members come to them."""
