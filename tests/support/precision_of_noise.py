"""Which precision of noise a sampler draws with, from rows whose tokens tell."""

import torch

from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw_testing import reference
from tokendraw_testing.rows.noise_precision import POSITION, telling_rows
from tokendraw_testing.verify.telling_drafts import DRAFT, RESIDUAL, SAMPLE, telling_batch

__all__ = [
    "ACCEPTED",
    "BONUS",
    "DRAFT",
    "DTYPES",
    "RECOVERED",
    "RESIDUAL",
    "SAMPLE",
    "drawn_with",
    "verified_with",
]

DTYPES = ("fp32", "fp64")
ACCEPTED, RECOVERED, BONUS = slice(0, 1), slice(1, 7), slice(7, 13)
"""The requests of a telling batch, by what decides their tokens."""


def drawn_with(sampler, streams=SAMPLE, *, device="cpu", few=False, **params):
    """The precision of the noise of both levels of a draw; the tokens themselves if it is neither.

    :param streams: those of drafts draw by ``draft``.
    :param few: whether only rows are drawn from that have two likely tokens.
    :param params: of every row, beside its seed.
    """
    rows = [row for row in telling_rows(*streams) if row.kept == 2 or not few]
    requests = [SamplingParams(seed=row.seed, **params) for row in rows]
    metadata = SamplingMetadata.from_params(requests, device=device, positions=[POSITION] * len(rows))
    logits = torch.stack([torch.from_numpy(row.logits) for row in rows]).to(device)
    output = (sampler.draft if streams == DRAFT else sampler.sample)(logits, metadata)
    expected = {
        dtype: [
            reference.draw(reference.prepare(row.logits, request), row.seed, POSITION, dtype, streams)[0]
            for row, request in zip(rows, requests, strict=True)
        ]
        for dtype in DTYPES
    }
    return _precision(output.token_ids.tolist(), expected)


def verified_with(sampler, part, kind="chosen", mode="rejection", *, device="cpu", filtered=False):
    """The precision of the noise that decides a part of the telling verifications; the tokens if it is neither.

    :param kind: what is given of the drafts.
    """
    batch = telling_batch(SamplingParams(), filtered=filtered)
    given = {"probs": batch.probs, "logits": batch.draft}.get(kind)
    q = {} if given is None else {f"draft_{kind}": torch.cat(list(map(torch.from_numpy, given))).to(device)}
    drafts = Drafts.from_lists(batch.ids, device=device, **q)
    first = torch.tensor(batch.first, device=device)
    metadata = SamplingMetadata.from_params(
        batch.params,
        device=device,
        positions=speculative.row_positions(drafts.cu_num_logits, first, drafts.num_rows),
        row_index=speculative.row_index(drafts.cu_num_logits, drafts.num_rows),
    )
    target = torch.cat(list(map(torch.from_numpy, batch.target))).to(device)
    output = sampler.verify(target, drafts, metadata, mode=mode)
    counts = (output.num_accepted + 1).tolist()
    found = [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)][part]
    requests = range(len(batch))[part]
    return _precision(
        found, {dtype: [batch.walk(i, mode, kind, dtype).tokens for i in requests] for dtype in DTYPES}
    )


def _precision(found, expected):
    assert all(narrow != wide for narrow, wide in zip(*expected.values(), strict=True))
    return next((dtype for dtype, tokens in expected.items() if tokens == found), found)
