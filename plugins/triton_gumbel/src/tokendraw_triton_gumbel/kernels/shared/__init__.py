"""Functions that several stages share: addresses, parameters and noise of a row, and the order of floats."""
