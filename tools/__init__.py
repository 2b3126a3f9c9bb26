"""Tools for those who carry the code on. No package imports them."""
