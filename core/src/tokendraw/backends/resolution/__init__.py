"""Choose the plugin for an operation, purely, from frozen records. Imports neither torch nor pluggy."""
