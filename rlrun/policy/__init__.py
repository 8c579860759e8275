"""One readable file per algorithm; siblings never import each other."""
