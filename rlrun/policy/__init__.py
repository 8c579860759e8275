"""One readable file per algorithm, with its actor; what they share stands beside them."""
