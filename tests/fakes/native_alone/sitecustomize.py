"""With this folder on PYTHONPATH an interpreter finds native and the samplers on PYTHONPATH, and no other.

So what a test prints depends on no sampler that a developer has installed beside native. Where SMALLEST_KIT is set, the
conformance kit makes each of its lines of as few rows as for an interpreter.
"""

import os

import importlib_metadata

_GROUP = "tokendraw.plugins"
_PATH = {os.path.realpath(folder) for folder in os.environ["PYTHONPATH"].split(os.pathsep)}
_everything = importlib_metadata.distributions


def _belongs(distribution):
    return (
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
