"""Actors: actions of E environments from a copy of a policy's weights, arrays in and out."""
