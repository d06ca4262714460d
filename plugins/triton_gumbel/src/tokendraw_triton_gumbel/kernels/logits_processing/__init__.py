"""Launch E: what requests ask to be done to their logits before sampling, all of it in one launch."""
