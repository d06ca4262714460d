"""Files of logits that ``tokendraw sample`` reads."""
