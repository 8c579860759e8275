"""Pure torch functions on time-major [T, B] tensors."""
