"""Reads the files of logits that ``tokendraw sample`` takes."""
