"""A pass over the logits of a row: it weighs them above pivots, or collects those of a bracket."""
