"""Policies: one readable file per algorithm with its actor, and the base classes that they
share.
"""
