"""The lines of ``score``: every column beside float64 and beside those of draws, shapes and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from numpy.random import Generator

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.plugin import INPUT_DTYPES, LOGPROBS_MODES, Filter, LogprobsMode
from tokendraw_testing import exact, kept_sets
from tokendraw_testing.cases.factors import Kind, Site
from tokendraw_testing.cases.requests import (
    CrossedRequest,
    further_filters,
    further_requests,
    has_filter,
    parts_of_equal_scalars,
    requests_in_turn,
    stack_logits,
)
from tokendraw_testing.cases.rows import WIDE_SIZE, covering_rows, rows_of_designs
from tokendraw_testing.judges.rows import LogprobRows, require_columns
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import require_unadvertised
from tokendraw_testing.kit.trial import Trial, require_unmodified
from tokendraw_testing.subjects import RowSubject, SampleSubject, ScoreSubject

properties = Properties("score")

_NUMS_BEST: Final = (None, 0, 3, 21)
_LABEL_PADDING: Final = -100
_FILTERED: Final[dict[Filter, SamplingParams]] = {
    "top_k": SamplingParams(top_k=2),
    "top_p": SamplingParams(top_p=0.5),
    "min_p": SamplingParams(min_p=0.5),
    "typical_p": SamplingParams(typical_p=0.5),
    "xtc": SamplingParams(xtc_probability=1.0),
}
"""A request with each filter."""


@properties.required("scores", is_long=True)
def scores(subject: ScoreSubject, trial: Trial) -> str:
    """Values, ranks, best tokens, masses, entropies and bounds of given tokens are float64's in every mode."""
    rng, effort, num_rows = trial.generator("table"), subject.effort, 0
    modes, row_kinds = subject.capabilities.logprobs_modes, _kinds(subject)
    for number, (site, rows) in enumerate(covering_rows(subject, rng, on_thresholds=True).items()):
        for turn, mode in enumerate(modes):
            is_first = turn == number % len(modes)
            if not is_first and (effort.fewer > 1 or effort.skips(site.size, number + turn)):
                continue
            batch = requests_in_turn(rows, row_kinds, 1, rng, turn)
            is_narrow = site.size <= WIDE_SIZE and is_first
            if is_narrow and further_filters(subject.capabilities):
                batch += further_requests(subject, site, rng, needs_seed=True)
            batch = [request.asking(_NUMS_BEST[i % len(_NUMS_BEST)]) for i, request in enumerate(batch)]
            has_bounds = subject.capabilities.threshold and turn % 2 == number % 2
            view = subject.with_need(threshold=True) if has_bounds else subject
            for part in parts_of_equal_scalars(subject, batch):
                tokens = [_token(request, i, int(rng.integers(site.size))) for i, request in enumerate(part)]
                logits = stack_logits(part, subject.device)
                with require_unmodified(trial, logits=logits):
                    scored = _score(view, part, logits, tokens, mode)
                require_columns(trial, part, tokens, scored, mode)
            num_rows += len(batch)
    return f"{num_rows} rows in {len(modes)} modes"


def _score(
    subject: ScoreSubject,
    batch: Sequence[CrossedRequest],
    logits: torch.Tensor,
    tokens: Sequence[int],
    mode: LogprobsMode,
) -> Any:
    params, positions = [request.params for request in batch], [request.position for request in batch]
    return subject.score(logits, tokens, params, mode, positions)


@properties.required("scores of draws")
def scores_of_draws(subject: ScoreSubject, trial: Trial) -> str:
    """The token that ``sample`` drew has the values of that draw, bit for bit."""
    if "sample" not in subject.subject.capabilities:
        trial.skip("needs a plugin that also draws, found scores alone")
    rng, sampler, num_rows = trial.generator("table"), SampleSubject(subject.subject), 0
    modes, row_kinds = subject.capabilities.logprobs_modes, _kinds(subject)
    for number, (site, rows) in enumerate(covering_rows(subject, rng).items()):
        mode = modes[number % len(modes)]
        requests = requests_in_turn(rows, row_kinds, 1, rng, number)
        batch = [request.asking(i % 3) for i, request in enumerate(requests)]
        for part in parts_of_equal_scalars(subject, batch):
            params, logits = [request.params for request in part], stack_logits(part, subject.device)
            drawn = sampler.sample(logits, params, [0] * len(part), mode=mode)
            scored = _score(subject, part, logits, drawn.token_ids.tolist(), mode)
            pairs: dict[str, tuple[Any, Any]] = {"log_kept_mass": (scored.log_kept_mass, drawn.log_kept_mass)}
            for name in ("token_ids", "logprobs", "ranks"):
                pairs[name] = getattr(scored.logprobs, name), getattr(drawn.logprobs, name)
            for name, (found, expected) in pairs.items():
                trial.require(
                    torch.equal(found, expected),
                    f"{site}, {mode}: '{name}' needs the bits of the draw, found others",
                )
            num_rows += len(part)
    return f"{num_rows} rows"


def _refusal(params: SamplingParams, **need: Any) -> Refusal:
    def call(subject: ScoreSubject) -> Any:
        metadata = SamplingMetadata.from_params([params], device=subject.device, positions=[0])
        ids = torch.zeros(1, dtype=torch.int64, device=subject.device)
        return subject.new_call("score", torch.zeros(1, 4, device=subject.device), ids, metadata)

    return Refusal(need, call)


@properties.required("score output")
def output(subject: ScoreSubject, trial: Trial) -> str:
    """Batches of no row, V = 1 and padding have scores of the right form; unadvertised requests are refused."""
    for rows, size in ((0, 50), (1, 1), (3, 50)):
        tokens = [_LABEL_PADDING, 0, size][:rows]
        scored = subject.score(torch.zeros(rows, size), tokens, [SamplingParams()] * rows)
        logprobs = LogprobRows(scored.logprobs, scored.log_kept_mass)
        for i, token in enumerate(tokens):
            if not 0 <= token < size:
                logprobs.require_padding(trial, token, i)
    empty = subject.score(torch.full((1, 9), -torch.inf), [3], [SamplingParams()])
    trial.require(
        bool(empty.entropy.isnan().all()),
        f"a row of -inf needs the entropy NaN, found {empty.entropy.tolist()}",
    )
    refusals = (
        *((offers("dtypes", name), Refusal({"dtype": name})) for name in INPUT_DTYPES),
        *((offers("logprobs_modes", mode), Refusal({"logprobs_mode": mode})) for mode in LOGPROBS_MODES),
        *((has_filter(name), _refusal(params)) for name, params in _FILTERED.items()),
        (lambda c: c.greedy, _refusal(SamplingParams(temperature=0.0))),
        (lambda c: c.threshold, Refusal({"threshold": True})),
    )
    return "4 shapes" + require_unadvertised(subject, refusals)


def _kinds(subject: RowSubject) -> list[Kind]:
    """Return kinds of rows that differ for a score: only XTC looks at seeds."""
    return ["unseeded", "greedy"] if subject.capabilities.greedy else ["unseeded"]


def _token(request: CrossedRequest, number: int, random_id: int) -> int:
    """Choose the likeliest, the least likely, a kept, a random, the last, or no token of a row."""
    x, size, kept = request.row.x, request.row.site.size, int(request.row.prepared.kept.argmax())
    return (int(x.argmax()), int(x.argmin()), kept, random_id, size - 1, _LABEL_PADDING)[number % 6]


class _ScoreBatch(exact.Batch):
    """Rows with a token to score each."""

    method = "score"

    def __init__(
        self, subject: ScoreSubject, requests: list[CrossedRequest], tokens: list[int], mode: LogprobsMode
    ) -> None:
        self.subject, self.requests, self.tokens, self.mode = subject, requests, tokens, mode
        self.need = subject.need(mode)

    def __len__(self) -> int:
        return len(self.requests)

    def __str__(self) -> str:
        return f"{len(self)} rows of {self.requests[0].row.site}, {self.mode}"

    def select(self, order: Sequence[int]) -> _ScoreBatch:
        requests, tokens = [self.requests[i] for i in order], [self.tokens[i] for i in order]
        return _ScoreBatch(self.subject, requests, tokens, self.mode)

    def arguments(self) -> dict[str, Any]:
        params, device = [request.params for request in self.requests], self.subject.device
        positions = [request.position for request in self.requests]
        metadata = SamplingMetadata.from_params(params, device=device, positions=positions)
        ids = torch.tensor(self.tokens, dtype=torch.int64, device=device)
        return {"logits": stack_logits(self.requests, device), "token_ids": ids, "metadata": metadata}

    def columns(self, output: Any) -> list[exact.Columns]:
        rows = LogprobRows(output.logprobs, output.log_kept_mass)
        entropies = output.entropy.cpu().numpy()
        return [
            {"logprobs": rows.values[i], "best tokens": rows.ids[i], "entropy": entropies[i]}
            if request.params.temperature == 0 or request.row.is_settled
            else {}
            for i, request in enumerate(self.requests)
        ]


def _examples(subject: ScoreSubject, rng: Generator, rows: int, size: int) -> Iterator[_ScoreBatch]:
    """Make batches of designed rows in every dtype, with the modes in turn."""
    capabilities = subject.capabilities
    size, modes = min(size, capabilities.max_vocab_size or size), capabilities.logprobs_modes
    for turn, dtype in enumerate(capabilities.dtypes[: 1 if rows > exact.MANY else None]):
        designs = rows_of_designs(capabilities, Site(dtype, size), rng)
        batch = requests_in_turn(designs, _kinds(subject), -(-rows // len(designs)), rng)
        batch = parts_of_equal_scalars(subject, [batch[i].asking(3) for i in rng.permutation(len(batch))])[0]
        tokens = [_token(request, i, int(rng.integers(size))) for i, request in enumerate(batch[:rows])]
        yield _ScoreBatch(subject, batch[:rows], tokens, modes[turn % len(modes)])


KIT = OperationKit(
    view=ScoreSubject,
    properties=(
        *properties.all,
        *kept_sets.lines("score"),
        *exact.lines("score", "score ", _examples, device_shape=(24, 32_000)),
    ),
)
