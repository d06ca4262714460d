"""Edits of the logits of requests before sampling, all in one launch, and appends of tokens to histories."""
