"""A sample project: two kernels behind C functions, no torch."""
