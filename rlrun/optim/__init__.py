"""What a gradient step is made of."""
