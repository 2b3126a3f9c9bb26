"""`what-if`: the costs of a recorded group under other settings."""
