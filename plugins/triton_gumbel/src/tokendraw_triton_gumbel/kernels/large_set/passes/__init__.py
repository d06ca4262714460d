"""Makes a pass over a row: weighs its tiles above pivots, or collects the logits of a bracket."""
