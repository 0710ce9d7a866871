"""HTTP/1.1 for the console: connections with limits, rules for requests, the files of the pages."""
