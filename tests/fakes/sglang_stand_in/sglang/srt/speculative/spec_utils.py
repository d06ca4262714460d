"""Stands in for SGLang's switch of a benchmark, which fixes how many drafts are accepted."""

SIMULATE_ACC_LEN = -1
