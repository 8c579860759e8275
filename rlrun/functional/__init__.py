"""Pure functions on time-major [T, B] arrays. Every docstring has formula, shapes and paper."""
