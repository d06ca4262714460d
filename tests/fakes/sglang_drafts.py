"""Drafts for SGLang's verification on a CPU, and its walks over them, which SGLang has as CUDA kernels alone."""

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_engine import IS_REAL
from tokendraw_sglang._engine import PROCESS


@contextlib.contextmanager
def speculation(algorithm: str = "EAGLE", **leaves: Any) -> Iterator[None]:
    """Have SGLang speculate, with its walks in Python; a sampler made within verifies."""
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative import eagle_utils

    fields = {"speculative_algorithm": algorithm, "speculative_num_draft_tokens": 4, **leaves}
    with pytest.MonkeyPatch.context() as patch, get_spec().override(**fields):
        patch.setattr(PROCESS, "verifier", None)
        patch.setattr(eagle_utils, "verify_tree_greedy_func", walk)
        if IS_REAL:
            patch.setattr(
                eagle_utils, "sampling_softmax", lambda x, temperatures: (x / temperatures).softmax(-1)
            )
            patch.setattr(eagle_utils, "tree_speculative_sampling_target_only", walk_by_coins)
            for name in ("top_k_renorm_prob", "top_p_renorm_prob"):  # a certain token needs no filter
                patch.setattr(eagle_utils, name, lambda probs, _limits: probs)
        yield


def walk(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    topk: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept drafts that equal the target's token, as SGLang's ``verify_tree_greedy`` does, in place."""
    for b in range(len(candidates)):
        node, path = 0, [0]
        while len(path) < accept_index.shape[1]:
            child = int(retrieve_next_token[b, node])
            while child != -1 and candidates[b, child] != target_predict[b, node]:
                child = int(retrieve_next_sibling[b, child])
            if child == -1:
                break
            path.append(node := child)
        for step, node in enumerate(path):
            accept_index[b, step] = retrieve_index[b, node]
            predicts[retrieve_index[b, node]] = target_predict[b, node]
        accept_token_num[b] = len(path) - 1
    return predicts, accept_index, accept_token_num


def walk_by_coins(*, uniform_samples: Tensor, target_probs: Tensor, **arguments: Any) -> None:
    """Walk by the tokens that coins draw, as SGLang's ``tree_speculative_sampling_target_only`` is distributed."""
    coins = uniform_samples.unsqueeze(-1)
    tokens = (target_probs.cumsum(-1) < coins).sum(-1).clamp(max=target_probs.shape[-1] - 1)
    names = ("predicts", "accept_index", "accept_token_num", "candidates")
    links = {
        f"retrieve_{name}": arguments[f"retrive_{name}"] for name in ("index", "next_token", "next_sibling")
    }
    walk(*(arguments[name] for name in names), **links, target_predict=tokens)


def chains(
    tokens: Sequence[Sequence[int]], seq_lens: Sequence[int], draft_probs: Tensor | None = None
) -> Any:
    """Make a chain for each request: the settled token and its drafts, as EAGLE with ``topk`` 1.

    :param draft_probs: [B, n - 1, V].
    """
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    width = len(tokens[0])
    links = _links([[i - 1 for i in range(width)]] * len(tokens), tokens, seq_lens)
    return EagleVerifyInput(
        **links,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=1,
        capture_hidden_mode=None,
        seq_lens_sum=None,
        seq_lens_cpu=None,
        draft_probs=draft_probs,
    )


def trees(parents: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], seq_lens: Sequence[int]) -> Any:
    """Make a tree for each request, as its n-grams: the parent of each node, -1 of the first."""
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    return NgramVerifyInput(**_links(parents, tokens, seq_lens))


def _links(
    parents: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], seq_lens: Sequence[int]
) -> dict[str, Any]:
    requests, width = len(tokens), len(tokens[0])
    next_token, next_sibling = (torch.full((requests, width), -1) for _ in range(2))
    positions = torch.empty(requests, width, dtype=torch.int64)
    for b, of in enumerate(parents):
        for node in range(width):
            positions[b, node] = seq_lens[b] if of[node] < 0 else positions[b, of[node]] + 1
            children = [child for child in range(width) if of[child] == node]
            for child, sibling in zip([None, *children], [*children, -1], strict=True):
                if child is None:
                    next_token[b, node] = sibling
                else:
                    next_sibling[b, child] = sibling
    return {
        "draft_token": torch.tensor(tokens).view(-1),
        "custom_mask": torch.ones(1, dtype=torch.bool),
        "positions": positions.view(-1),
        "retrieve_index": torch.arange(requests * width).view(requests, width),
        "retrieve_next_token": next_token,
        "retrieve_next_sibling": next_sibling,
        "draft_token_num": width,
    }


def batch_of(info: Any, seq_lens: Sequence[int]) -> Any:
    """Make a batch as SGLang's worker hands it to ``eagle_sample``."""
    return SimpleNamespace(
        device="cpu",
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=torch.tensor(seq_lens),
        sampling_info=info,
        return_logprob=False,
        top_logprobs_nums=None,
        token_ids_logprobs=None,
    )


def verify(drafts: Any, info: Any, logits: Tensor, seq_lens: Sequence[int], grammar_mask: Any = None) -> Any:
    """Call SGLang's ``eagle_sample``, and return the emitted tokens of each request and the edited logits.

    The rows of the emitted tokens have to be a path from the first node, one node for each draft accepted.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.speculative import eagle_utils

    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    batch = batch_of(info, seq_lens)
    predict, counts, accept_index = eagle_utils.eagle_sample(drafts, batch, output, grammar_mask)
    assert batch.sampling_info is info
    width = drafts.draft_token_num
    assert (predict.dtype, counts.dtype, accept_index.dtype) == (torch.int32,) * 3
    assert predict.shape == (len(logits),)
    assert accept_index.shape == (len(info), drafts.max_tree_depth)
    texts = []
    for b, (count, rows) in enumerate(zip(counts.tolist(), accept_index.tolist(), strict=True)):
        assert rows[count:] == [-1] * (len(rows) - count)
        assert rows[0] == b * width
        text = predict[rows[:count]].tolist()
        assert text[:-1] == drafts.draft_token[rows[1:count]].tolist()
        texts.append(text)
    return texts, output.next_token_logits
