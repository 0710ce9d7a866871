"""Who a client is: SASL mechanisms, TLS over the ports, principals."""
