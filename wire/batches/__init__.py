"""Parts of record batches: headers, records, compression; the front door is `odradek.wire.record_batch`."""
