"""Witnesses: processes that see another process end and prove it to the leader, so that nobody
waits for its session timeout (docs/protocol.md#m11).
"""
