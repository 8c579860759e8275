"""Base classes of the policies."""
