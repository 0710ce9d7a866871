"""Parts of record batches: headers, records, compression. Other packages import from
`odradek.wire.record_batch`.
"""
