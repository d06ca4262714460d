"""Cases: rows of logits, requests, drafts and edits, by covering tables and at random."""
