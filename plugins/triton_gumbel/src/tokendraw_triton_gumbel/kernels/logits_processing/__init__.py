"""Launch E edits the logits of requests before sampling, all edits in one launch; launch A appends their tokens."""
