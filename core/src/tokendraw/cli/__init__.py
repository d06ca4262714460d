"""The ``tokendraw`` command.

Every command takes ``--json``: one object on stdout and nothing else there; messages go to stderr. Its keys
are documented in the module of the command and only ever added to.

``list``, ``show``, ``resolve`` and ``doctor`` never import torch; ``check``, ``bench``, ``sample`` and ``generate`` do
when they run, and every command imports rich when it prints.
"""

from tokendraw.cli._app import main
from tokendraw.cli._bench import bench
from tokendraw.cli._check import check
from tokendraw.cli._doctor import doctor
from tokendraw.cli._generate import generate
from tokendraw.cli._list import list_
from tokendraw.cli._new import new
from tokendraw.cli._resolve import resolve
from tokendraw.cli._sample import sample
from tokendraw.cli._show import show

__all__ = ["main"]

# As a newcomer meets them.
for _command in (list_, show, resolve, doctor, check, bench, sample, generate, new):
    main.add_command(_command)
