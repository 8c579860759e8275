"""Torsos, memories and heads."""
