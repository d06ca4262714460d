"""AMD's aiter on a CPU: the three sampling operators under aiter's registration, with exact draws.

They have the signatures of 0.1.13, which no release has changed up to 0.1.20.post1, and three faults of these releases,
so that a caller who runs into one is told: scratch that is laid out by ``top_k_val`` and filled by the tensor, a read
out of bounds for rows without any mass, and pointers that are taken for contiguous rows. Calls are noted in
:data:`CALLS`.
"""

import torch
from torch import Tensor
from torch.library import Library, infer_schema

CALLS: list[tuple[str, dict[str, object]]] = []
"""Names and arguments by name, since the list was last cleared."""
MODULES = {
    "aiter": "",
    "aiter.ops": "",
    "aiter.ops.sampling": "import aiter_stand_in\naiter_stand_in.register()\n",
}
"""Modules as ``fake_dist`` takes them."""
_GUARD = 64
_libraries: list[Library] = []


def register() -> None:
    """Define the operators; once, since torch keeps them for the life of the process."""
    if _libraries:
        return
    library = Library("aiter", "FRAGMENT")
    for operator in (top_k_renorm_probs, top_p_sampling_from_probs, top_k_top_p_sampling_from_probs):
        library.define(operator.__name__ + infer_schema(operator, mutates_args=[]))
        library.impl(operator.__name__, operator, "CPU")
    _libraries.append(library)


def top_k_renorm_probs(probs: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int) -> Tensor:
    CALLS.append(("top_k_renorm_probs", {"top_k": maybe_top_k_arr, "top_k_val": top_k_val}))
    _check(probs)
    top_k = _parameter(maybe_top_k_arr, top_k_val, probs).long()
    _fill_scratch(top_k, top_k_val)
    kept = torch.where(_above(probs)[0] < top_k.unsqueeze(-1), probs.double(), 0.0)
    return (kept / kept.sum(-1, keepdim=True).clamp(min=1e-8)).float()


def top_p_sampling_from_probs(
    probs: Tensor,
    indices: Tensor,
    maybe_top_p_arr: Tensor | None,
    top_p_val: float,
    deterministic: bool = False,
) -> Tensor:
    CALLS.append(("top_p_sampling_from_probs", {"top_p": maybe_top_p_arr, "top_p_val": top_p_val}))
    _check(probs)
    weights = probs.double()
    top_p = _parameter(maybe_top_p_arr, top_p_val, probs)
    return _pick(weights, _within_mass(weights, top_p))


def top_k_top_p_sampling_from_probs(
    probs: Tensor,
    indices: Tensor,
    maybe_top_k_arr: Tensor | None,
    top_k_val: int,
    maybe_top_p_arr: Tensor | None,
    top_p_val: float,
    deterministic: bool = False,
) -> Tensor:
    CALLS.append(("top_k_top_p_sampling_from_probs", {"top_k": maybe_top_k_arr, "top_p": maybe_top_p_arr}))
    _check(probs)
    weights = probs.double()
    top_k = _parameter(maybe_top_k_arr, top_k_val, probs)
    top_p = _parameter(maybe_top_p_arr, top_p_val, probs)
    return _pick(weights, (_above(probs)[0] < top_k.unsqueeze(-1)) & _within_mass(weights, top_p))


def _check(probs: Tensor) -> None:
    if probs.dim() != 2 or not probs.is_contiguous():
        raise RuntimeError(
            f"Memory access fault: the rows are not where {probs.stride()} says, nobody looks at it"
        )


def _parameter(tensor: Tensor | None, number: float, probs: Tensor) -> Tensor:
    found = torch.full((len(probs),), number) if tensor is None else tensor
    if found.dim() != 1 or len(found) != len(probs):
        raise RuntimeError("Memory access fault: the parameters are read beyond their end")
    return found


def _fill_scratch(top_k: Tensor, top_k_val: int) -> None:
    """Fill the ids of the k largest at a stride of ``top_k_val``, 50 for 0 (sampling.cuh from 0.1.15 on)."""
    stride = top_k_val if top_k_val > 0 else 50
    scratch = torch.full((len(top_k) * stride + _GUARD,), -1)
    for row, k in enumerate(top_k.tolist()):
        if row * stride + k > len(scratch) - _GUARD:
            raise RuntimeError(f"Memory access fault: {k} ids in row {row} of scratch for {stride} each")
        scratch[row * stride : row * stride + k] = row
    for row, k in enumerate(top_k.tolist()):
        if not (scratch[row * stride : row * stride + k] == row).all():
            raise RuntimeError(f"scratch of row {row} was overwritten by the row before it")


def _pick(weights: Tensor, kept: Tensor) -> Tensor:
    """A token a row, with the seed of torch's generator, taken on the host."""
    weights = torch.where(kept & (weights > 0), weights, 0.0)
    cumulative = weights.cumsum(-1)
    mass = cumulative[:, -1:]
    if not (mass > 0).all():
        raise RuntimeError(
            "Memory access fault: a row without mass reads what its block left in shared memory"
        )
    target = torch.rand(len(weights), 1, dtype=torch.float64) * mass
    return (
        torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1).int()
    )


def _above(x: Tensor) -> tuple[Tensor, Tensor]:
    """Count and sum the larger values of the row, for each value."""
    ordered, order = x.sort(-1, descending=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=is_first[:, 1:])
    first = torch.where(is_first, torch.arange(x.shape[-1]), 0).cummax(-1).values
    sums = (ordered.cumsum(-1) - ordered).gather(-1, first)
    return torch.empty_like(order).scatter_(-1, order, first), torch.empty_like(x).scatter_(-1, order, sums)


def _within_mass(weights: Tensor, top_p: Tensor) -> Tensor:
    """Select tokens with less than p of the row's mass above; all tokens where every p is 1."""
    if (top_p >= 1).all():
        return torch.ones_like(weights, dtype=torch.bool)
    return _above(weights)[1] < top_p.unsqueeze(-1)
