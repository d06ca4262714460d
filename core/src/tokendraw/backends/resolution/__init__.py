"""Choose the plugin for an operation, purely, from frozen facts. Imports neither torch nor pluggy."""
