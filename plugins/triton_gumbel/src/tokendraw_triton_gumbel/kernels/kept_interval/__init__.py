"""Launches for rows that keep an interval of values, or whose filters look at another temperature than the draw."""
