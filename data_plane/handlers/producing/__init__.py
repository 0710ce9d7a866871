"""Handlers of Produce, DescribeProducers and WriteTxnMarkers: refusals, appends, recompression, verification,
acknowledgements.
"""
