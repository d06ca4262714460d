"""The rows of a V1 batch: their parameters for tokendraw, and the rows for vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata

Generators = Mapping[int, torch.Generator]
"""Generator of each row whose request has a seed."""


def metadata_of(
    logits: Tensor, generators: Generators, k: Tensor | None, p: Tensor | None
) -> SamplingMetadata:
    """Describe a batch of logits after vLLM's temperature and min-p.

    :param logits: [B, V].
    :param k: [B] integer, V or more: off; None: off in every row.
    :param p: [B] floating point, 1: off; None: off in every row.
    """
    return SamplingMetadata(
        top_k=k,
        top_p=p,
        facts=BatchFacts(
            any_greedy=False,
            all_seeded=len(generators) == logits.shape[0],
            **(_largest(k, logits.shape[1]) if k is not None and logits.is_cpu else {}),
        ),
        **_noise(generators, logits.shape[0], logits.device),
    )


def _largest(k: Tensor, vocab_size: int) -> dict[str, Any]:
    """Read the host's facts about the largest top-k from a tensor on the CPU."""
    active = k[(k > 0) & (k < vocab_size)]
    return {
        "max_top_k": int(active.max()) if len(active) else 0,
        "all_top_k": len(active) == len(k) > 0,
    }


def _noise(generators: Generators, rows: int, device: torch.device) -> dict[str, Any]:
    """Take a seed and a position of every row with a generator, and move the generator on by a draw.

    vLLM's V1 passes no positions, so the generator's state distinguishes the steps. On a CUDA device its seed and
    offset are read on the host; elsewhere a generator has no offset, and gives a number of 63 bits.
    """
    if not generators:
        return {}
    seeds, positions, seeded = [0] * rows, [0] * rows, [False] * rows
    for row, generator in generators.items():
        seeded[row] = True
        if generator.device.type == "cuda":
            offset = generator.get_offset()
            seeds[row], positions[row] = _signed(generator.initial_seed()), offset // 4
            generator.set_offset(offset + 4)
        else:
            seeds[row] = int(
                torch.randint(0, 2**63 - 1, (), generator=generator, dtype=torch.int64, device="cpu")
            )
    # one copy, from pageable memory, which torch reads before the call returns
    columns = torch.tensor([seeds, positions, seeded], dtype=torch.int64, device="cpu").to(
        device, non_blocking=True
    )
    noise = {"seed": columns[0], "positions": columns[1]}
    return noise if len(generators) == rows else {**noise, "seeded": columns[2].bool()}


def _signed(seed: int) -> int:
    """Write 64 bits as torch's int64 does."""
    return seed - 2**64 if seed >= 2**63 else seed


def unfiltered_seeded_rows(
    generators: Generators, k: Tensor | None, p: Tensor | None, vocab_size: int
) -> list[int]:
    """Find the seeded rows without filters. Reads the tensors on the CPU."""
    if not generators:
        return []
    top_k = [vocab_size] * (max(generators) + 1) if k is None else k.tolist()
    top_p = [1.0] * (max(generators) + 1) if p is None else p.tolist()
    return sorted(row for row in generators if top_k[row] >= vocab_size and top_p[row] >= 1.0)


@dataclass(frozen=True)
class FilteredRows:
    """The rows for tokendraw in a batch with rows for vLLM."""

    index: Tensor
    """[n] int64: row numbers in the batch."""
    logits: Tensor
    """[n, V]."""
    generators: Generators
    k: Tensor | None
    p: Tensor | None

    @classmethod
    def excluding(
        cls,
        excluded: Sequence[int],
        logits: Tensor,
        generators: Generators,
        k: Tensor | None,
        p: Tensor | None,
    ) -> FilteredRows:
        """Take all rows but ``excluded``, and copy their logits."""
        excluded_rows = set(excluded)
        rows = [row for row in range(logits.shape[0]) if row not in excluded_rows]
        index = torch.tensor(rows, dtype=torch.int64, device="cpu")
        return cls(
            index=index,
            logits=logits[index],
            generators={index: generators[row] for index, row in enumerate(rows) if row in generators},
            k=None if k is None else k[index],
            p=None if p is None else p[index],
        )

    def metadata(self) -> SamplingMetadata:
        """Describe the rows."""
        return metadata_of(self.logits, self.generators, self.k, self.p)

    def merge(self, filtered_ids: Tensor, excluded: Sequence[int], ids: Tensor) -> Tensor:
        """Merge the tokens of tokendraw's and vLLM's rows: [B] int64."""
        tokens = filtered_ids.new_empty(len(filtered_ids) + len(ids))
        tokens[self.index] = filtered_ids
        tokens[torch.tensor(excluded, dtype=torch.int64, device="cpu")] = ids
        return tokens
