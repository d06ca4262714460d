"""Each edit by itself, and all of them in their order, in every dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from numpy.random import Generator

from tokendraw import RequestSlots, SamplingParams
from tokendraw.plugin import EDITS, Call, Edit
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.refusals import offers, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.process_logits.subject import EditRequest, ProcessSubject

properties = Properties("process_logits")

_VOCAB_SIZE = 300
PENALTIES: Final[tuple[Edit, ...]] = "repetition_penalty", "frequency_penalty", "presence_penalty"
_PENALTY_VALUES: Final = (0.1, 2.0, -2.0, 1.3)
_PROMPT, _OUTPUT = [7, 3, 3, 299, 0], [5, 3, 5, 5, 298, 31, 32]
_REPEATING_OUTPUT = [9, 3, 31, 5, 298, 2, 31, 3, 31, 5, 298]


_DRY_SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"dry_allowed_length": 1},
    {"dry_allowed_length": 0},
    {"dry_allowed_length": 1, "dry_base": 3.0},
    {"dry_allowed_length": 1, "dry_base": 1.0},
    {"dry_allowed_length": 1, "dry_base": 2.0**60},
    {"dry_allowed_length": 1, "dry_penalty_last_n": 0},
    {"dry_allowed_length": 1, "dry_penalty_last_n": 6},
    {"dry_allowed_length": 1, "dry_penalty_last_n": 7},
    {"dry_allowed_length": 1, "dry_sequence_breakers": [3]},
    {"dry_allowed_length": 1, "dry_sequence_breakers": [31]},
)
_BUDGETS: Final = (
    (6, [3, 3], [32, 40]),  # begun by the last token
    (7, [3, 3], [32, 40]),
    (8, [3, 3], [32, 40]),
    (2, [5, 298], [9]),
    (3, [5, 298], [9]),
    (0, [5], [31]),  # behind the newest start
    (0, [5, 5], [298, 1]),
    (0, [31, 32], [32, 6]),  # the last token is that of the start
    (0, [32], [31, 32]),  # both end there
    (2, [5, 298], [31, 32, 31, 1]),
    (0, [6], [1]),
)
_EDIT_FIELDS: Final[dict[Edit, dict[str, Any]]] = {
    "allowed_token_ids": {"allowed_token_ids": [1]},
    "bad_words": {"bad_words": [[1]]},
    "min_tokens": {"min_tokens": 1, "stop_token_ids": [1]},
    "thinking_budget": {"thinking_budget": (0, [1], [2])},
    "logit_bias": {"logit_bias": {1: 1.0}},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "presence_penalty": {"presence_penalty": 1.0},
    "dry_multiplier": {"dry_multiplier": 1.0},
}
"""Fields of a request for each edit but the bitmask and the window of penalties."""


def _cases(vocab_size: int) -> dict[Edit, list[dict[str, Any]]]:
    """Make requests with one edit each, by edit."""
    top = vocab_size - 1
    biases: tuple[dict[int, float], ...] = (
        {0: 0.1, 5: -100.0, top: 7.7},
        {token: token / 7 for token in range(100)},
    )
    bad_words = (
        [[9]],
        [[31, 32, 8], [32, 10], [31, 10, 11], [5, 32, 12]],
        [[*_OUTPUT, 14], [0, *_OUTPUT, 15], [299, *_OUTPUT, 16]],
        [[32, 17], [17]],
    )
    least = (len(_OUTPUT) - 1, len(_OUTPUT), len(_OUTPUT) + 1, 40)
    return {
        "repetition_penalty": [{"repetition_penalty": penalty} for penalty in (1.1, 2.0, 0.7, 1e-3, 3e4)],
        "frequency_penalty": [{"frequency_penalty": penalty} for penalty in _PENALTY_VALUES],
        "presence_penalty": [{"presence_penalty": penalty} for penalty in _PENALTY_VALUES],
        "logit_bias": [{"logit_bias": bias} for bias in biases],
        "allowed_token_ids": [{"allowed_token_ids": ids} for ids in ([top], [0, 31, 32, 63, top - 1])],
        "bad_words": [{"bad_words": words} for words in bad_words],
        "min_tokens": [{"min_tokens": n, "stop_token_ids": [2, 5, 250]} for n in least],
        "thinking_budget": [{"thinking_budget": budget, "logit_bias": {1: 2.0}} for budget in _BUDGETS],
        "dry_multiplier": [{"dry_multiplier": 0.8, **settings} for settings in _DRY_SETTINGS],
        "penalty_last_n": [
            {**penalties, "penalty_last_n": n}
            for n in (0, 1, 3, len(_OUTPUT), len(_OUTPUT) + 2, 100)
            for penalties in (
                {"repetition_penalty": 1.7},
                {"frequency_penalty": 0.5, "presence_penalty": 0.25},
            )
        ],
    }


def _edit_refusal(edit: Edit) -> Refusal:
    def call(subject: ProcessSubject) -> Call:
        slots = RequestSlots(1, 2, 8, device=subject.device)
        params = SamplingParams(**_EDIT_FIELDS.get(edit, {}))
        if edit == "penalty_last_n":
            penalty = next(name for name in PENALTIES if name in subject.capabilities.edits)
            params = SamplingParams(penalty_last_n=1, **_EDIT_FIELDS[penalty])
        slots.add(0, params)
        logits = torch.zeros(1, 8, dtype=subject.dtypes[0], device=subject.device)
        row_index = torch.zeros(1, dtype=torch.int64, device=subject.device)
        words = torch.ones(1, 1, dtype=torch.int32, device=subject.device) if edit == "bitmask" else None
        return subject.new_call("process", logits, slots, row_index, words)

    return Refusal(call=call)


def _offers_edit(edit: Edit) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with an edit; a window is part of the penalties where there are none."""
    if edit != "penalty_last_n":
        return offers("edits", edit)
    return lambda capabilities: edit in capabilities.edits or not {*PENALTIES} & {*capabilities.edits}


_REFUSALS: Final = tuple((_offers_edit(edit), _edit_refusal(edit)) for edit in EDITS)


@properties.required("process edits")
def single_edits(subject: ProcessSubject, trial: Trial) -> str:
    """Each advertised edit by itself changes logits by its formula, and no more; unadvertised edits are refused."""
    vocab_size = subject.vocab_size(_VOCAB_SIZE)
    prompt, output, repeating = (
        [token for token in ids if token < vocab_size] for ids in (_PROMPT, _OUTPUT, _REPEATING_OUTPUT)
    )
    cases = {edit: group for edit, group in _cases(vocab_size).items() if edit in subject.capabilities.edits}
    plain: list[dict[str, Any]] = [{}]
    params = [SamplingParams(**fields) for group in (plain, *cases.values()) for fields in group]
    for dtype in subject.dtypes:
        requests = {
            slot: EditRequest(p, list(prompt), list(repeating if p.dry_multiplier else output))
            for slot, p in enumerate(params)
        }
        engine = subject.engine(requests, len(requests), vocab_size)
        logits = subject.logits(trial.generator(str(dtype)), len(requests), vocab_size, dtype)
        subject.check_edits(trial, str(dtype), engine, list(requests), logits)
    num_masks = _require_bitmasks(subject, trial) if subject.has_bitmask else 0
    text = f"{len(params) - 1} requests and {num_masks} bitmasks in {len(subject.dtypes)} dtypes"
    return text + require_unadvertised(subject, _REFUSALS)


def _require_bitmasks(subject: ProcessSubject, trial: Trial) -> int:
    """Require -inf for ids whose bit is not set, to the last bit; return the number of vocabularies."""
    sizes = [subject.vocab_size(size) for size in (1, 31, 32, 33, 300, 1025)]
    for vocab_size in sizes:
        for dtype in subject.dtypes:
            rng = trial.generator(f"{vocab_size}, {dtype}")
            engine = subject.engine({s: EditRequest(SamplingParams()) for s in range(4)}, 4, vocab_size)
            allowed = rng.random((4, vocab_size)) < 0.5
            allowed[0], allowed[1], allowed[2:, -1] = True, False, [True, False]
            logits = subject.logits(rng, 4, vocab_size, dtype)
            subject.check_edits(
                trial, f"{vocab_size} ids, {dtype}", engine, range(4), logits, allowed=allowed
            )
    return len(sizes)


@properties.required("process order")
def order(subject: ProcessSubject, trial: Trial) -> str:
    """All edits at once are applied in their order, and rounded to the dtype once, at the end."""
    vocab_size, rows = subject.vocab_size(_VOCAB_SIZE), 12
    for dtype in subject.dtypes:
        rng = trial.generator(str(dtype))
        requests = {slot: random_edits(rng, vocab_size) for slot in range(rows)}
        engine = subject.engine(requests, rows, vocab_size)
        logits = subject.logits(rng, rows, vocab_size, dtype)
        allowed = rng.random((rows, vocab_size)) < 0.7
        subject.check_edits(trial, str(dtype), engine, range(rows), logits, allowed=allowed)
    return f"{rows} requests in {len(subject.dtypes)} dtypes"


def random_edits(rng: Generator, vocab_size: int) -> EditRequest:
    """Draw a request of several edits over few common ids; the prompt ends with placeholders."""
    token_pool = rng.permutation(vocab_size)[:12]

    def ids(count: int) -> list[int]:
        return [int(token) for token in rng.choice(token_pool, count)]

    fields: dict[str, Any] = {
        "repetition_penalty": float(rng.uniform(0.5, 2.0)),
        "frequency_penalty": float(rng.uniform(-2.0, 2.0)),
        "presence_penalty": float(rng.uniform(-2.0, 2.0)),
        "logit_bias": {token: float(rng.normal(0.0, 5.0)) for token in ids(5)},
        "allowed_token_ids": sorted({*ids(8), *rng.integers(0, vocab_size, vocab_size // 2).tolist()}),
        "bad_words": [ids(1), ids(2), ids(3), ids(2)],
        "min_tokens": int(rng.integers(0, 12)),
        "stop_token_ids": sorted(set(ids(2))),
        "penalty_last_n": int(rng.integers(0, 20)),
        "dry_multiplier": float(rng.uniform(0.0, 3.0)),
    }
    chosen_fields = {name: value for name, value in fields.items() if rng.random() < 0.8}
    if "min_tokens" in chosen_fields:
        chosen_fields["stop_token_ids"] = fields["stop_token_ids"]
    if "dry_multiplier" in chosen_fields:
        chosen_fields |= {
            "dry_base": float(rng.uniform(1.0, 3.0)),
            "dry_allowed_length": int(rng.integers(0, 3)),
            "dry_penalty_last_n": int(rng.choice([-1, -1, 0, 4, 15])),
            "dry_sequence_breakers": ids(int(rng.integers(0, 3))),
        }
    if rng.random() < 0.2:
        marks = ids(int(rng.integers(1, 3))), ids(int(rng.integers(1, 4)))
        chosen_fields["thinking_budget"] = (int(rng.integers(0, 5)), *marks)
    prompt = [*ids(int(rng.integers(0, 8))), -1, vocab_size]
    return EditRequest(SamplingParams(**chosen_fields), prompt, ids(int(rng.integers(0, 12))))
