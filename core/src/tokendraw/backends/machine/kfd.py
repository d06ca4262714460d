"""Reads facts about AMD devices from the kernel driver's topology in sysfs, without torch."""

from __future__ import annotations

from pathlib import Path

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def architectures(topology: Path | None = None) -> tuple[str, ...]:
    """List the architecture of each GPU, such as ``gfx942``, in the driver's order, without CPUs.

    Sysfs lists every GPU of the machine: ``HIP_VISIBLE_DEVICES`` and its kin are not taken into account.
    """
    nodes = sorted((topology or TOPOLOGY).glob("*/properties"), key=lambda path: int(path.parent.name))
    versions = (_gfx_target_version(node) for node in nodes)
    return tuple(architecture(version) for version in versions if version)


def architecture(gfx_target_version: int) -> str:
    """Write ``90402`` as ``gfx942``: minor and stepping, two decimal digits each, become a hexadecimal digit each."""
    major, rest = divmod(gfx_target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def _gfx_target_version(properties: Path) -> int:
    try:
        lines = properties.read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("gfx_target_version ")))
    except (OSError, ValueError, IndexError, StopIteration):  # such as another user's node in a container
        return 0
