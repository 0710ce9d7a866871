"""The controller: it decides requests with metadata records, and replays the records to the next image."""
