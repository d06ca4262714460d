"""Which plugin serves: pure decisions over frozen facts. Imports neither torch nor pluggy."""
