"""The ``tokendraw`` command.

Every command takes ``--json``: one object on stdout and nothing else there; messages go to stderr as well. Each object
has ``schema_version``, an integer that rises when a key goes or changes its meaning, and ``error``, null exactly where
the exit code is 0, else the message. The other keys are documented in the module of the command and only ever added to.
The object of a usage error has these two keys alone.

``list``, ``show``, ``resolve`` and ``doctor`` never import torch; ``check``, ``bench``, ``sample`` and ``generate`` do
when they run. A command's module is imported when it is called, and rich when it prints.
"""

try:
    from tokendraw.cli.app import main
except KeyboardInterrupt:  # there is nothing yet that could say so in another way
    raise SystemExit(130) from None

__all__ = ["main"]
