"""What operations on rows of logits share: requests, what each row has to draw, and draws in bulk."""
