"""Words commands to install tokendraw's distributions: from a checkout, until an index has them."""

from __future__ import annotations

_ON_AN_INDEX = False  # publishing turns this to True

_FOLDERS = {
    "tokendraw": "./core",
    "tokendraw-testing": "./testing",
    "tokendraw-bench": "./bench",
    "tokendraw-native": "./plugins/native",
    "tokendraw-cpu": "./plugins/cpu",
    "tokendraw-flashinfer": "./plugins/flashinfer",
    "tokendraw-aiter": "./plugins/aiter",
    "tokendraw-triton-gumbel": "./plugins/triton_gumbel",
    "tokendraw-engine-ops": "./engine_ops",
    "tokendraw-sglang": "./integrations/sglang",
    "tokendraw-transformers": "./integrations/transformers",
    "tokendraw-vllm": "./integrations/vllm",
}
"""Folder of each distribution in a checkout."""


def pip_install(distribution: str, extra: str = "", *, options: str = "") -> str:
    """Write the command to install a distribution: ``pip install './core[files]'``."""
    source = distribution if _ON_AN_INDEX else _FOLDERS.get(distribution, distribution)
    target = f"'{source}[{extra}]'" if extra else source
    return " ".join(filter(None, ("pip install", options, target)))


def where(distribution: str) -> str:
    """Write where to run the command, as a sentence continues: `` in tokendraw's checkout``, or nothing."""
    return "" if _ON_AN_INDEX or distribution not in _FOLDERS else " in tokendraw's checkout"


def how_to_install(distribution: str, extra: str = "") -> str:
    """Write the command in backquotes and where to run it, as a sentence continues after ``run``."""
    return f"`{pip_install(distribution, extra)}`{where(distribution)}"


NATIVE = how_to_install("tokendraw-native")
