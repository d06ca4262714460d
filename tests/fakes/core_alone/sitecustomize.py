"""With this folder on PYTHONPATH an interpreter finds neither tokendraw-testing nor tokendraw-bench."""

import sys

import importlib_metadata

sys.modules |= dict.fromkeys(("tokendraw_testing", "tokendraw_bench", "scipy", "pytest", "matplotlib"))
_everything = importlib_metadata.distributions


def _distributions(**context):
    hidden = ("tokendraw-testing", "tokendraw-bench")
    return (dist for dist in _everything(**context) if dist.name not in hidden)


importlib_metadata.distributions = _distributions
