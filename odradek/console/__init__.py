"""The console: pages in a browser that show a cluster, and the JSON API behind them. It is a program of its own."""
