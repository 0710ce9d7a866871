"""What serving requests is made of, wherever a listener is: the contract of handlers, the API table, slices, timers."""
