"""Colours that the timeline page and the pictures share."""
