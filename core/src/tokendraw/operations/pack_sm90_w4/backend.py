"""The protocol of packers, built by plugins for the operation ``pack_sm90_w4``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tokendraw.backends.description.weight_layouts import Format, Layout

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Sm90W4PackerBackend(Protocol):
    """The packer returned by ``tokendraw_build`` for ``pack_sm90_w4``.

    One whose capabilities say ``unpacks`` has ``unpack_weights`` and ``unpack_scales`` as well, with the same
    parameters and the way back. The core has checked dtype, dimensions, format and layout.
    """

    def pack_weights(self, weights: Tensor, *, format: Format, layout: Layout) -> Tensor:
        """Pack weights [E, N, K / 2] uint8, dense: a new tensor of the same shape."""
        ...

    def pack_scales(self, scales: Tensor, *, layout: Layout) -> Tensor:
        """Pack scales [E, N, K / 32] uint8, dense: [E, K / 128, 4 N] (v1) or [E, N / 64, K / 128, 16, 16] (v2)."""
        ...
