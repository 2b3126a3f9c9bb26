"""Reads partitions: a core without I/O (`core`, `read_brokers`, `fetch_session`, `batches`), and a
thin shell over asyncio (`shell`) that sends its requests over a wire (`broker_wire`): of real
brokers, or of simulated ones.
"""
