"""Launch 1: the pass over all logits."""
