"""The examinations that ``tokendraw doctor`` makes."""
