"""A plugin ``limited`` that is native, but advertises less."""

import hashlib
from pathlib import Path

from tokendraw_testing import fake_dist

_SOURCE = """
    from dataclasses import replace

    from tokendraw.plugin import hookimpl
    from tokendraw_native import plugin as native

    class Limited:
        @hookimpl
        def tokendraw_describe(self):
            info = native.tokendraw_describe()
            less = {{"sample": {sample}, "verify": {verify}}}
            operations = {{name: replace(own, **less.get(name, {{}})) for name, own in info.operations.items()}}
            return replace(info, name="limited", priority=-1, operations=operations)

        @hookimpl
        def tokendraw_build(self, operation, device, need):
            return native.tokendraw_build(operation, device, need)

    plugin = Limited()
"""


def install_limited(folder: Path, sample: dict = {}, verify: dict = {}) -> Path:  # noqa: B006
    """Write its distribution, and return the folder to put on ``sys.path``.

    :param sample: what it advertises otherwise than native, by field of the capabilities.
    """
    source = _SOURCE.format(sample=repr(sample), verify=repr(verify))
    module = f"limited_tokendraw_{hashlib.sha256(source.encode()).hexdigest()[:8]}"  # one name, one content
    return fake_dist(
        folder,
        "limited-tokendraw",
        plugins={"limited": f"{module}:plugin"},
        modules={module: source},
    )
