"""The language models that ``tokendraw generate`` draws from: a small one, or one on disk."""
