"""The HTTP port of a member: health, metrics, and questions about state."""
