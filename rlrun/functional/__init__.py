"""Pure functions on time-major [T, B] arrays: formula, shapes and paper in every docstring."""
