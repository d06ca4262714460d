"""Times samples with the vocabulary split over ranks against samples behind an all-gather of the logits."""
