"""Draws by triton-gumbel with different tokens for float64 and float32 noise, in Triton's interpreter."""

import torch

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_testing import Effort, Subject, reference
from tokendraw_testing.cases.drafts import DRAFT, SAMPLE, chains, telling_call
from tokendraw_testing.cases.telling import POSITION, telling_rows
from tokendraw_testing.subjects import VerifySubject
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

DTYPES = ("fp32", "fp64")


def draws():
    """Compare tokens and drafts of rows with few, hundreds and thousands of kept tokens, with top-k and without."""
    wrong, judged = [], 0
    for dtype in DTYPES:
        sampler = TritonGumbelSampler(torch.device("cpu"), Need(gumbel_dtype=dtype))
        for streams in (SAMPLE, DRAFT):
            for row in telling_rows(*streams):
                for top_k in (0, row.kept):
                    params = SamplingParams(top_k=top_k, seed=row.seed)
                    metadata = SamplingMetadata.from_params([params], positions=[POSITION])
                    logits = torch.from_numpy(row.logits[None])
                    result = sampler.sample(logits, metadata, draft=streams == DRAFT).token_ids.item()
                    prepared = reference.prepare(row.logits, params)
                    expected, _ = reference.draw(prepared, row.seed, POSITION, dtype, streams)
                    judged += 1
                    if result != expected:
                        wrong.append([dtype, streams, row.kept, top_k, expected, result])
    return {"judged": judged, "wrong": wrong}


def verifications():
    """Compare chains decided by a single float64 variate: of the acceptance, the residual, or the bonus token."""
    capabilities = plugin.tokendraw_describe().operations["verify"]
    subject = Subject(
        "triton-gumbel",
        capabilities={"verify": capabilities},
        device="cpu",
        build=lambda operation, need: TritonGumbelSampler(torch.device("cpu"), need),
        effort=Effort.tiny(),
    )
    verifying, wrong, judged = VerifySubject(subject), [], 0
    for mode in ("rejection", "coupled"):
        for filtered in (False, True):
            asked = telling_call((mode, "chosen"), SamplingParams(), filtered=filtered, gumbel_dtype="fp64")
            result = chains(asked.verify(verifying))
            expected = [answer.tokens for answer in asked.answers()]
            judged += len(result)
            wrong += [
                [filtered, mode, i, *pair]
                for i, pair in enumerate(zip(expected, result, strict=True))
                if pair[0] != pair[1]
            ]
    return {"judged": judged, "wrong": wrong}
