"""Classic consumer groups that the broker takes over to the new consumer protocol (KIP-848) while
they run: whether it will, what their clients are, what it costs, and doing it.
"""
