"""Functions of several stages: addresses, parameters and noise of a row, and the order of floats."""
