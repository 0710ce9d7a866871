"""Handlers of InitProducerId, EndTxn, AddPartitionsToTxn and AddOffsetsToTxn, and of requests that describe
transactions.
"""
