"""Draws by triton-gumbel with different tokens for float64 and float32 noise, in Triton's interpreter."""

import torch

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_testing import Effort, Subject, reference
from tokendraw_testing.rows.noise_precision import POSITION, telling_rows
from tokendraw_testing.verify.draft_batch import chains
from tokendraw_testing.verify.subject import VerifySubject
from tokendraw_testing.verify.telling_drafts import DRAFT, SAMPLE, telling_batch
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
            batch = telling_batch(SamplingParams(), filtered=filtered)
            result = chains(batch.verify(verifying, mode, "chosen", gumbel_dtype="fp64"))
            expected = [batch.walk(i, mode, "chosen", "fp64").tokens for i in range(len(batch))]
            judged += len(batch)
            wrong += [
                [filtered, mode, i, expected[i], result[i]]
                for i in range(len(batch))
                if expected[i] != result[i]
            ]
    return {"judged": judged, "wrong": wrong}
