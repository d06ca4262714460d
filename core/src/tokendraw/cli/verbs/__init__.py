"""The verbs of the command line: each module is one."""
