"""The admin client: `broker_choice` decides whom to ask, without I/O and clock; `shell` asks."""
