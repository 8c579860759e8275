"""From a validated config to running objects."""
