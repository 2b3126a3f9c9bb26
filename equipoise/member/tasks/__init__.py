"""Granted tasks: opened, given their records, committed, and closed."""
