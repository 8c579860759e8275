"""Rows in memory: layout, ring, compression, sizes."""
