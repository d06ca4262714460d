"""What ``tokendraw doctor`` looks at."""
