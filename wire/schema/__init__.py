"""The facts of Kafka's protocol as tables, and the generator that writes Python sources from them."""
