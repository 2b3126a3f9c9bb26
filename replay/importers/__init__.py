"""Histories of groups that something else led, read into facts."""
