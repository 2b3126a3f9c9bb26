"""Importers: they read histories of groups led by other software into facts."""
