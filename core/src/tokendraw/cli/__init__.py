"""The ``tokendraw`` command.

Every command takes ``--json``: one object on stdout and nothing else there; messages go to stderr. Its keys
are documented in the module of the command and only ever added to.

``list``, ``show``, ``resolve`` and ``doctor`` never import torch; ``check``, ``bench``, ``sample`` and ``generate`` do
when they run. A command's module is imported when it is called, and rich when it prints.
"""

try:
    from tokendraw.cli.app import main
except KeyboardInterrupt:  # there is nothing yet that could say so in another way
    raise SystemExit(130) from None

__all__ = ["main"]
