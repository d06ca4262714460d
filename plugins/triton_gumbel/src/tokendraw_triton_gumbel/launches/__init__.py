"""The launches of a call: kernels compiled once for each variant of a call, their arguments, grids and scratch."""
