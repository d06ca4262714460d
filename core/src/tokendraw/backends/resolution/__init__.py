"""Decides which plugin serves, purely, from frozen facts. Imports neither torch nor pluggy."""
