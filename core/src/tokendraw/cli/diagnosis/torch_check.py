"""Tries to import torch in a process of its own, because a broken torch may end its process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from tokendraw._torch.importing import damage

_CODE = """\
import sys
sys.path[:] = sys.argv[1:]
from tokendraw._messages.errors import SamplerUnavailableError
from tokendraw._torch.importing import require_torch
try:
    require_torch()
except SamplerUnavailableError as error:
    print(error)
    sys.exit(1)
sys.exit(0)
"""
_PATIENCE = 300  # seconds; a cold import over a network takes tens of them


def torch_trouble() -> str | None:
    """Say why torch cannot be imported; None if it can, or is not installed."""
    if hasattr(sys.modules.get("torch"), "Tensor") or importlib.util.find_spec("torch") is None:
        return None
    try:
        run = subprocess.run(
            [sys.executable, "-c", _CODE, *sys.path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return damage("A sampler", f"still importing after {_PATIENCE} s")
    said = run.stdout.strip().splitlines()
    if run.returncode == 1 and said:
        return said[-1]
    return (
        damage("A sampler", f"ending the process: exit status {run.returncode}") if run.returncode else None
    )
