"""Colours and SVG elements that the timeline page, the timeline picture and the what-if picture
share.
"""
