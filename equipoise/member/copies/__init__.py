"""Copies of state: stores, kept up to date with their changelogs, and which records count."""
