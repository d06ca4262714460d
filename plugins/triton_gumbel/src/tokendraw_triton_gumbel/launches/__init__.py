"""What a call launches: kernels compiled once for each variant of a call, their arguments, grids and scratch."""
