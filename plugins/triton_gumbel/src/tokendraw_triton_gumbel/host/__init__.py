"""Parts of a launch: tuning, variants, layouts of inputs, grids, scratch, arguments, compilation."""
