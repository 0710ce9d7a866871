"""Parts of record batches: headers, records, compression; the front door is `wire.record_batch`."""
