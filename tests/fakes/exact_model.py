"""A model with exact logits: each seeded token has one right value, computed in float64.

Embeddings are 1 and -1, layers add nothing, RMSNorm leaves 1 and -1 as they are, and the head has multiples of 1/64:
every sum is exact in float32, in any order. The logits depend on the last token alone, and no shape of a batch, chunk,
preemption, draft or cached prefix may change a bit of them.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tokendraw import SamplingParams
from tokendraw.engines import read_rules
from tokendraw_testing import reference, reference_edits


@functools.cache
def weights(vocab_size: int, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and head: [V, size] float32 each."""
    generator = torch.Generator().manual_seed(seed)
    embeddings, head = torch.randint(-20, 21, (2, vocab_size, size), generator=generator).float()
    return torch.where(embeddings < 0, -1.0, 1.0), head / 64


def make_exact(model: Any, seed: int = 0) -> None:
    """Give a model of transformers' such weights; its norms add at most 1e-12 to the mean square."""
    of_model = weights(*model.lm_head.weight.shape, seed)
    model.model.embed_tokens.weight.data, model.lm_head.weight.data = of_model
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter.data.zero_()


def text(
    request: Mapping[str, Any],
    prompt: Sequence[int],
    vocab_size: int,
    size: int,
    dtype: torch.dtype = torch.float32,
) -> list[int]:
    """The tokens of a request with a seed, computed in float64 from logits in a dtype."""
    given = {name: value for name, value in request.items() if name not in ("max_tokens", "extra_args")}
    rules = request.get("extra_args", {}).get("tokendraw")
    params, (embeddings, head) = (
        read_rules(rules, "rules", SamplingParams(**given)),
        weights(vocab_size, size),
    )
    output: list[int] = []
    while len(output) < request["max_tokens"] and not {*output[-1:]} & {*given.get("stop_token_ids", ())}:
        tokens = [*prompt, *output]
        logits = (head.double() @ embeddings[tokens[-1]].double()).to(dtype).double().numpy()
        row = reference.prepare(reference_edits.edit(logits, params, prompt, output).values, params)
        output.append(reference.draw(row, given["seed"], len(tokens) - 1)[0])
    return output
