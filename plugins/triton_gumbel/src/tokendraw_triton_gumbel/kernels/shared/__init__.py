"""What several stages compute alike: addresses, parameters and noise of a row, and the order of floats."""
