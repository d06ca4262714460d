"""Language models of ``tokendraw generate``: the built-in n-gram model and models on disk."""
