"""With this folder on PYTHONPATH an interpreter finds native and the samplers on PYTHONPATH, and no other.

So what a test prints depends on no sampler that a developer has installed beside native. Where CORE_ALONE is set, it
finds neither tokendraw-testing nor tokendraw-bench. Where SMALLEST_KIT is set, the conformance kit makes each of its
lines of as few rows as for an interpreter.
"""

import os
import sys

import importlib_metadata

_GROUP = "tokendraw.plugins"
_PATH = {os.path.realpath(folder) for folder in os.environ["PYTHONPATH"].split(os.pathsep)}
_HIDDEN = ("tokendraw-testing", "tokendraw-bench") if "CORE_ALONE" in os.environ else ()
_everything = importlib_metadata.distributions
if _HIDDEN:
    sys.modules |= dict.fromkeys(("tokendraw_testing", "tokendraw_bench", "scipy", "pytest", "matplotlib"))


def _belongs(distribution):
    return distribution.name not in _HIDDEN and (
        os.path.realpath(distribution.locate_file("")) in _PATH
        or distribution.name == "tokendraw-native"
        or not distribution.entry_points.select(group=_GROUP)
    )


def _distributions(**context):
    return filter(_belongs, _everything(**context))


importlib_metadata.distributions = _distributions

if "SMALLEST_KIT" in os.environ:
    import dataclasses

    from tokendraw_testing.kit.effort import Effort

    Effort.of = classmethod(
        lambda cls, *, quick, device_type: dataclasses.replace(cls.tiny(), interpreted=False)
    )
