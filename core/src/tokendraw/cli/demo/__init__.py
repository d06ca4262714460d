"""What ``tokendraw generate`` draws from: a small language model, or one on disk."""
