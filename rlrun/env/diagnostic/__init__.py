"""Small native environments for tests and diagnosis."""
