"""Rows of a backend judged one by one by the float64 reference: directed rows, which the kit does not draw."""

from dataclasses import dataclass, field, replace

import numpy as np

from tokendraw import SamplingMetadata
from tokendraw_testing import reference

CLOSE = 1e-5
"""How far a log-probability in float32 may lie from the one in float64, relative to numbers above 1."""
ERROR_OF_A_SUM = 2e-6
"""Error of a sum of probabilities in float32: so far may the mass of a nucleus lie from p."""


@dataclass
class Verdict:
    """How many tokens were judged, and what was wrong, a line each."""

    judged: int = 0
    wrong: list[str] = field(default_factory=list)


def judge(backend, logits, requests, *, mode="raw_logprobs", dtype="fp32"):
    """Draw a row a request, and compare everything that comes back. Row i has position i.

    :param mode: the log-probabilities that the backend was built for.
    :param dtype: of its noise.
    """
    positions = range(len(requests))
    metadata = SamplingMetadata.from_params(requests, device=logits.device, positions=positions)
    output = backend.sample(logits, metadata)
    verdict = Verdict()
    for i, asked in enumerate(requests):
        is_left_out = asked.xtc_probability and not reference.applies_xtc(asked, asked.seed, i, dtype)
        request = replace(asked, xtc_probability=0.0) if is_left_out else asked
        values = reference.SortedLogits.of(logits[i].float().cpu().numpy())
        row = reference.prepare(values, request)
        faults = [] if bool(output.valid[i]) == row.valid else ["valid"]
        if row.valid and row.certain:
            token, lead = reference.draw(row, request.seed, i, dtype)
            if lead > reference.NEAR_TIE:
                verdict.judged += 1
                if output.token_ids[i] != token:
                    faults.append(f"token {output.token_ids[i]}, not {token}")
            faults += _numbers(output, i, row, asked, mode)
        elif row.valid and output.threshold is not None:
            least, most = (
                reference.threshold(reference.prepare(values, replace(request, top_p=min(1.0, p))))
                for p in (request.top_p * (1 + ERROR_OF_A_SUM), request.top_p * (1 - ERROR_OF_A_SUM))
            )
            if not least <= output.threshold[i] <= most:
                faults.append(f"threshold {output.threshold[i]}, not in [{least}, {most}]")
        verdict.wrong += [f"row {i}, {request}: {fault}" for fault in faults]
    return verdict


def _numbers(output, i, row, request, mode):
    """Yield what is wrong with the bounds, the mass and the log-probabilities of a row."""
    has_ceiling = request.typical_p < 1 or request.xtc_probability > 0
    ceiling = reference.ceiling(row) if has_ceiling else np.inf
    for name, wanted in (("threshold", reference.threshold(row)), ("ceiling", ceiling)):
        bound = getattr(output, name)
        if bound is not None and not np.array_equal(bound[i].cpu(), wanted, equal_nan=True):
            yield f"{name} {bound[i]}, not {wanted}"
    if output.log_kept_mass is not None:
        mass = float(output.log_kept_mass[i])
        if mass > 0 or abs(mass - reference.log_kept_mass(row)) > CLOSE:
            yield f"log kept mass {mass}, not {reference.log_kept_mass(row)}"
    if output.logprobs is None or request.logprobs is None:
        return
    token = int(output.token_ids[i])
    values = reference.values(row, token, mode)
    wanted = len(values) if request.logprobs < 0 else min(request.logprobs, len(values))
    best = np.concatenate(([values[token]], np.sort(values)[::-1][:wanted]))
    ids, found = (
        getattr(output.logprobs, name)[i, : 1 + wanted].cpu().numpy() for name in ("token_ids", "logprobs")
    )
    if mode.endswith("logprobs") and (found > 0).any():
        yield f"a log-probability above 0: {found.max()}"
    if not np.allclose(found, best, CLOSE, CLOSE) or not np.allclose(found, values[ids], CLOSE, CLOSE):
        yield f"log-probabilities {found[:4]}, not {best[:4]}, of ids {ids[:4]}"
    if len(set(ids[1:].tolist())) < wanted:
        yield f"a best token twice: {ids[1:9]}"
    if output.logprobs.ranks[i] != reference.rank(row, values, token):
        yield f"rank {output.logprobs.ranks[i]}, not {reference.rank(row, values, token)}"
