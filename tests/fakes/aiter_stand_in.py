"""AMD's aiter on a CPU: the three sampling operators under aiter's registration, with exact draws.

They have the signatures of 0.1.13, which no release has changed up to 0.1.20.post1, and three faults of these releases,
so that a caller who runs into one is told: scratch that is laid out by ``top_k_val`` and filled by the tensor, a read
out of bounds for rows without any mass, and pointers that are taken for contiguous rows. Calls are noted in
:data:`CALLS`.
"""

import torch
from torch import Tensor
from torch.library import Library, infer_schema

from flashinfer_stand_in import count_above, mass_above, pick

CALLS: list[tuple[str, dict[str, object]]] = []
"""Names and arguments by name, since the list was last cleared."""
MODULES = {
    "aiter": "",
    "aiter.ops": "",
    "aiter.ops.sampling": "import aiter_stand_in\naiter_stand_in.register()\n",
}
"""Modules as ``fake_dist`` takes them."""
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
    most = top_k_val if top_k_val > 0 else 50
    if int(top_k.max()) > most:  # the ids of the k largest, side by side (sampling.cuh from 0.1.15 on)
        raise RuntimeError(f"Memory access fault: {int(top_k.max())} ids in scratch for {most} of each row")
    kept = torch.where(count_above(probs) < top_k.unsqueeze(-1), probs.double(), 0.0)
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
    return _pick(probs, _within_mass(probs, _parameter(maybe_top_p_arr, top_p_val, probs)))


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
    top_k = _parameter(maybe_top_k_arr, top_k_val, probs)
    top_p = _parameter(maybe_top_p_arr, top_p_val, probs)
    return _pick(probs, (count_above(probs) < top_k.unsqueeze(-1)) & _within_mass(probs, top_p))


def _check(probs: Tensor) -> None:
    if probs.dim() != 2 or not probs.is_contiguous():
        raise RuntimeError(
            f"Memory access fault: the rows are not where {probs.stride()} says, nobody looks at it"
        )


def _parameter(tensor: Tensor | None, number: float, probs: Tensor) -> Tensor:
    result = torch.full((len(probs),), number) if tensor is None else tensor
    if result.dim() != 1 or len(result) != len(probs):
        raise RuntimeError("Memory access fault: the parameters are read beyond their end")
    return result


def _pick(probs: Tensor, kept: Tensor) -> Tensor:
    """A token a row, with the seed of torch's generator, taken on the host."""
    tokens, valid = pick(torch.where(kept & (probs > 0), probs.double(), 0.0), torch.default_generator)
    if not valid.all():
        raise RuntimeError(
            "Memory access fault: a row without mass reads what its block left in shared memory"
        )
    return tokens


def _within_mass(probs: Tensor, top_p: Tensor) -> Tensor:
    """Select tokens with less than p of the row's mass above; all tokens where every p is 1."""
    if (top_p >= 1).all():
        return torch.ones_like(probs, dtype=torch.bool)
    return mass_above(probs.double()) < top_p.unsqueeze(-1)
