"""Writes records: a core without I/O (`core`, `batch_queues`, `record_batches`,
`transaction_manager`), and a thin shell over asyncio (`shell`) that sends its requests
over a wire (`broker_wire`): of real brokers, or of simulated ones.
"""
