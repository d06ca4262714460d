"""The subject and the lines of ``process_logits``: each edit by itself, random requests, drafts and foreign slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw.plugin import EDITS, Call, Edit, EditFacts
from tokendraw_testing import exact
from tokendraw_testing.cases.edits import MAX_TOKENS, EditRequest, Engine, pack_bitmask, random_request
from tokendraw_testing.judges.edits import require_edits
from tokendraw_testing.kit.device import capture
from tokendraw_testing.kit.property import OperationKit, Properties, Refusal, offers
from tokendraw_testing.kit.subject import OperationSubject, require_unadvertised
from tokendraw_testing.kit.trial import Trial, bits
from tokendraw_testing.reference import Array

properties = Properties("process_logits")

_VOCAB_SIZE: Final = 300
_PENALTIES: Final[tuple[Edit, ...]] = "repetition_penalty", "frequency_penalty", "presence_penalty"
_ALL_EDITS: Final = SamplingParams(
    repetition_penalty=1.7,
    frequency_penalty=-1.1,
    presence_penalty=0.9,
    logit_bias={0: 2.5, 3: -2.5, 40: 1.0},
    allowed_token_ids=[1, 2, 3],
    bad_words=[[1]],
    min_tokens=5,
    stop_token_ids=[2],
)


class ProcessSubject(OperationSubject):
    """A subject in the operation ``process_logits``."""

    operation = "process_logits"

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Return the advertised dtypes."""
        return [getattr(torch, name) for name in self.capabilities.dtypes]

    def vocab_size(self, size: int) -> int:
        """Limit a vocabulary size to the subject's limit."""
        return min(size, self.capabilities.max_vocab_size or size)

    def engine(self, requests: Mapping[int, EditRequest], num_slots: int, vocab_size: int) -> Engine:
        """Put requests into their slots."""
        slots = RequestSlots(num_slots, MAX_TOKENS, vocab_size, device=self.device)
        engine = Engine(slots, {}, self.capabilities.edits)
        engine.add(requests)
        return engine

    @property
    def has_bitmask(self) -> bool:
        """Whether calls may come with a bitmask."""
        return "bitmask" in self.capabilities.edits

    def logits(self, rng: Generator, rows: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
        """Draw logits, on the subject's device."""
        values = torch.from_numpy(rng.normal(0.0, 4.0, (rows, vocab_size)))
        return values.to(dtype).to(self.device)

    def drafts(self, lists: Sequence[Sequence[int]]) -> Drafts:
        """Put drafts on the device."""
        return Drafts.from_lists(lists, device=self.device)

    def check_edits(
        self,
        trial: Trial,
        what: str,
        engine: Engine,
        order: Sequence[int],
        logits: Tensor,
        *,
        allowed: Array | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
        replay: Callable[[], None] | None = None,
    ) -> None:
        """Edit logits in place and compare every element.

        :param order: the slot of each row, or request.
        :param allowed: [rows, V] bool, of the bitmask, which only those who serve bitmasks are given.
        :param drafts: of each request.
        :param replay: edits these logits in place of a call.
        """
        before, allowed = logits.cpu().clone(), allowed if self.has_bitmask else None
        row_index = torch.tensor(list(order), dtype=torch.int64, device=self.device)
        bitmask = None if allowed is None else torch.from_numpy(pack_bitmask(allowed)).to(self.device)
        layout = None if drafts is None else self.drafts(drafts)
        if replay is None:
            self.make(self.new_call("process", logits, engine.slots, row_index, bitmask, layout))
        else:
            replay()
        result, row = logits.cpu(), 0
        for i, slot in enumerate(order):
            request, drafted = engine.requests[slot], () if drafts is None else drafts[i]
            for j in range(len(drafted) + 1):
                mask = None if allowed is None else allowed[row]
                where = f"{what}: row {row}" + ("" if drafts is None else f", after {j} drafts")
                output = [*request.output, *drafted[:j]]
                require_edits(trial, where, before[row], result[row], request, output, mask)
                row += 1


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
            penalty = next(name for name in _PENALTIES if name in subject.capabilities.edits)
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
    return lambda capabilities: edit in capabilities.edits or not {*_PENALTIES} & {*capabilities.edits}


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
    _require_special_values(subject, trial)
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


def _require_special_values(subject: ProcessSubject, trial: Trial) -> None:
    """Require -inf and NaN to stay, and infinities, zeros and the largest numbers to go through the formulas."""
    vocab_size = subject.vocab_size(_VOCAB_SIZE)
    for dtype in subject.dtypes:
        top = torch.finfo(dtype).max
        inf, tiny = float("inf"), torch.finfo(dtype).tiny
        values = [-inf, inf, float("nan"), 0.0, -0.0, top, -top, tiny, 1.0]
        values = values[:vocab_size]
        ids = list(range(len(values)))
        fields = [
            {"repetition_penalty": 1.5},
            {"repetition_penalty": 0.5},
            {"frequency_penalty": -2.0},
            {"frequency_penalty": 2.0, "presence_penalty": -2.0},
            {"logit_bias": dict.fromkeys(ids, -3.5)},
            {"logit_bias": dict.fromkeys(ids, 3.5), "repetition_penalty": 2.0},
            {"allowed_token_ids": ids[:1]},
        ]
        requests = {s: EditRequest(SamplingParams(**a), [], list(ids)) for s, a in enumerate(fields)}  # type: ignore[arg-type]
        logits = subject.logits(trial.generator(str(dtype)), len(fields), vocab_size, dtype)
        logits[:, : len(values)] = torch.tensor(values, dtype=dtype, device=subject.device)
        engine = subject.engine(requests, len(fields), vocab_size)
        subject.check_edits(trial, f"special values, {dtype}", engine, range(len(fields)), logits)


_CASES: Final = 36
_VOCAB_SIZES: Final = (1, 2, 31, 33, 300, 1024, 1025, 5003, 50_257, 65_543, 131_113, 262_147)
_WEIGHTS: Final = np.array((1, 1, 2, 2, 8, 3, 3, 4, 2, 1, 1, 1))
_SPECIAL_VALUES: Final = (float("-inf"), float("inf"), float("nan"), 0.0, -0.0)


@properties.required("process crossing", is_long=True)
def crossing(subject: ProcessSubject, trial: Trial) -> str:
    """Edits of random requests, drafts and slots are applied in their order, rounded once, in rows of any size."""
    rows = 0
    for number in range(subject.effort.rows(_CASES, least=12)):
        rng = trial.generator(f"case {number}")
        dtype = subject.dtypes[number % len(subject.dtypes)]
        size = _VOCAB_SIZE if number % 2 else int(rng.choice(_VOCAB_SIZES[:8]))
        rows += _steps(subject, rng, trial, dtype, subject.vocab_size(size))
    return f"{rows} rows of random requests in {len(subject.dtypes)} dtypes"


def fuzz(subject: ProcessSubject, rng: Generator, trial: Trial) -> str:
    """Edit the rows of some of the slots, at several steps of an engine."""
    dtype = subject.dtypes[rng.integers(len(subject.dtypes))]
    size = subject.vocab_size(int(rng.choice(_VOCAB_SIZES, p=_WEIGHTS / _WEIGHTS.sum())))
    rows = _steps(subject, rng, trial, dtype, size)
    return f"{rows} rows of {size} ids in {str(dtype).removeprefix('torch.')}"


def _steps(subject: ProcessSubject, rng: Generator, trial: Trial, dtype: torch.dtype, size: int) -> int:
    """Edit rows at some steps of an engine, whose requests come and go in any order; return their number."""
    most = min(subject.effort.rows(40, least=8), max(1, subject.effort.elements // (8 * size)))
    engine, rows = subject.engine({}, int(rng.integers(1, most + 1)), size), 0
    for step in range(int(rng.integers(1, 4))):
        for slot in [slot for slot in engine.requests if rng.random() < 0.5]:
            engine.remove(slot)
        slots = rng.permutation(engine.slots.num_slots).tolist()
        empty = [slot for slot in slots if slot not in engine.requests and rng.random() < 0.8]
        engine.add({slot: random_request(rng, size) for slot in empty})
        order: list[int] = rng.permutation(sorted(engine.requests)).tolist()
        if rng.random() < 0.3:
            order = order[: int(rng.integers(len(order) + 1))]
        drafts = None
        if subject.capabilities.drafts and rng.random() < 0.5:
            drafts = [_random_drafts(rng, engine.requests[slot], size) for slot in order]
        count = len(order) + sum(map(len, drafts or ()))
        logits = _random_logits(subject, rng, engine, count, dtype)
        allowed = None
        if rng.random() < 0.5:
            allowed = rng.random((count, size)) < rng.choice([0.0, 0.01, 0.5, 0.99, 1.0], (count, 1))
        if order:
            what = f"{size} ids in {str(dtype).removeprefix('torch.')}, step {step}"
            subject.check_edits(trial, what, engine, order, logits, allowed=allowed, drafts=drafts)
            engine.append({slot: int(rng.integers(size)) for slot in order})
        rows += count
    return rows


def _random_drafts(rng: Generator, request: EditRequest, vocab_size: int) -> list[int]:
    """Draw drafts from the request's ids, placeholders and bad words, or any id."""
    words = [token for word in request.params.bad_words or () for token in word]
    candidates = [*request.output, *request.prompt, *words, int(rng.integers(vocab_size))]
    return rng.choice(candidates, int(rng.choice([0, 1, 2, 5, 8, 12]))).tolist()  # type: ignore[no-any-return]


def _random_logits(
    subject: ProcessSubject, rng: Generator, engine: Engine, rows: int, dtype: torch.dtype
) -> Tensor:
    """Draw logits, often with special values at ids that occurred and others."""
    size = engine.slots.vocab_size
    logits = subject.logits(rng, rows, size, dtype)
    if rng.random() < 0.5:
        seen = [token for r in engine.requests.values() for token in r.output if token < size]
        top = torch.finfo(dtype).max
        values = [*_SPECIAL_VALUES, top, -top, torch.finfo(dtype).tiny]
        ids = rng.choice([*seen, *rng.integers(0, size, len(values))], len(values))
        chosen = torch.from_numpy(ids).to(subject.device)
        logits[:, chosen] = torch.tensor(values, dtype=dtype, device=subject.device)
    return logits


@properties.required("process unassigned rows")
def unassigned_rows(subject: ProcessSubject, trial: Trial) -> str:
    """A slot that there is not, or that is empty, asks for nothing; a bitmask holds in every row."""
    vocab_size = subject.vocab_size(_VOCAB_SIZE)
    rng = trial.generator("logits")
    engine = subject.engine({1: EditRequest(_ALL_EDITS, [1, 5], [3, 5])}, 3, vocab_size)
    for kind in (torch.int64, torch.int32):
        row_index = torch.tensor([-1, 0, 3, 2**31 - 1, -(2**31)], dtype=kind, device=subject.device)
        for has_zero_bits in (False, True)[: 1 + subject.has_bitmask]:
            logits = subject.logits(rng, 5, vocab_size, subject.dtypes[0])
            expected = logits.cpu().clone()
            words = None
            if subject.has_bitmask:
                shape, word = (5, -(-vocab_size // 32)), -2 if has_zero_bits else -1
                words = torch.full(shape, word, dtype=torch.int32, device=subject.device)
            subject.make(subject.new_call("process", logits, engine.slots, row_index, words))
            if has_zero_bits:
                expected.view(5, vocab_size)[:, ::32] = float("-inf")
            num_unequal = int((logits.cpu() != expected).any(1).sum())
            trial.require(
                not num_unequal, f"5 rows of nobody need their bitmask alone, found {num_unequal} others"
            )
    return "5 rows"


def _with_drafts(subject: ProcessSubject) -> Call:
    engine = subject.engine({0: EditRequest(SamplingParams(repetition_penalty=2.0), [1], [])}, 1, 8)
    logits = torch.zeros(2, 8, dtype=subject.dtypes[0], device=subject.device)
    row_index = torch.zeros(1, dtype=torch.int64, device=subject.device)
    return subject.new_call("process", logits, engine.slots, row_index, None, subject.drafts([[3]]))


_DRAFT_REFUSAL = Refusal(call=_with_drafts)


@properties.advertised("process drafts on the device", lambda c: c.drafts, _DRAFT_REFUSAL)
def on_the_device(subject: ProcessSubject, trial: Trial) -> str:
    """Padded ids and counts that the device alone knows give the same rows; rows behind the last stay as they are."""
    vocab_size, device = subject.vocab_size(_VOCAB_SIZE), subject.device
    rng = trial.generator("requests")
    lists = [[5, 6], [], [7], [5, 5, 5]]
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, bad_words=[[5, 9]])
    engine = subject.engine({s: EditRequest(params, [6], [7]) for s in range(4)}, 4, vocab_size)
    rows = sum(len(ids) + 1 for ids in lists)
    logits = subject.logits(rng, rows + 2, vocab_size, subject.dtypes[0])
    ragged_logits, padded_logits = logits.clone(), logits
    row_index = torch.arange(4, device=device)
    drafts = subject.drafts(lists)
    subject.make(subject.new_call("process", ragged_logits[:rows], engine.slots, row_index, None, drafts))
    rows_of_ids = [[*ids, *[-1] * (4 - len(ids))] for ids in lists]
    padded_ids = torch.tensor(rows_of_ids, dtype=torch.int32, device=device)
    offsets = subject.drafts(lists).cu_num_logits.to(torch.int32)
    padded_drafts = Drafts(draft_token_ids=padded_ids, cu_num_logits=offsets, max_drafts=4)
    short_index = row_index.to(torch.int32)
    subject.make(subject.new_call("process", padded_logits, engine.slots, short_index, None, padded_drafts))
    num_unequal = int((ragged_logits.cpu() != padded_logits.cpu()).any(1).sum())
    trial.require(not num_unequal, f"padded drafts need the rows of ragged ones, found {num_unequal} others")
    return f"{rows + 2} rows"


@properties.advertised(
    "process graph replay", lambda c: c.graph_safe, Refusal({"graph_safe": True}), needs_cuda=True
)
def graph_replay(subject: ProcessSubject, trial: Trial) -> str:
    """A graph captured with empty slots follows requests that come, grow and go, and logits that change."""
    rng, rows, vocab_size = trial.generator("steps"), 16, subject.vocab_size(2000)
    engine = subject.engine({0: EditRequest(_ALL_EDITS, [1], [2])}, rows, vocab_size)
    engine.slots.captured_edits = EditFacts.of(subject.capabilities.edits)
    logits = subject.logits(rng, rows, vocab_size, subject.dtypes[0])
    row_index, processor = torch.arange(rows, device=subject.device), subject.built()
    processor.process(logits, engine.slots, row_index)  # compiles: a capture is no place for that
    engine.remove(0)
    replay, _ = capture(lambda: processor.process(logits, engine.slots, row_index))
    engine.add({slot: random_request(rng, vocab_size) for slot in range(rows)})
    for step in range(5):
        logits.copy_(subject.logits(rng, rows, vocab_size, subject.dtypes[0]))
        subject.check_edits(trial, f"replay {step + 1}", engine, range(rows), logits, replay=replay)
        engine.append({slot: int(rng.integers(0, vocab_size)) for slot in range(rows)})
        engine.remove(step)
        engine.add({step: random_request(rng, vocab_size)})
    return f"{5} replays"


class _EditBatch(exact.Batch):
    """Edits of rows by their requests' slots, some with a bitmask."""

    method, edits = "process", True

    def __init__(
        self,
        subject: ProcessSubject,
        requests: Mapping[int, EditRequest],
        order: Sequence[int],
        logits: Tensor,
        allowed: Array | None,
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.subject, self.requests, self.order = subject, requests, order
        self.rows, self.allowed, self.drafts = logits, allowed, drafts
        copies = {s: EditRequest(r.params, list(r.prompt), list(r.output)) for s, r in requests.items()}
        self.engine = subject.engine(copies, len(requests), logits.shape[1])

    def __len__(self) -> int:
        return len(self.order)

    def __str__(self) -> str:
        rows, size = self.rows.shape
        words = "" if self.drafts is None else " with drafts"
        return f"{rows} rows of {size} ids in {self.rows.dtype}{words}"

    def select(self, order: Sequence[int]) -> _EditBatch:
        if self.drafts is not None:
            return self
        chosen, allowed = [self.order[i] for i in order], self.allowed
        rows, allowed = self.rows[list(order)], None if allowed is None else allowed[list(order)]
        return _EditBatch(self.subject, self.requests, chosen, rows, allowed)

    def arguments(self) -> dict[str, Any]:
        row_index = torch.tensor(list(self.order), dtype=torch.int64, device=self.subject.device)
        words = None if self.allowed is None else torch.from_numpy(pack_bitmask(self.allowed))
        return {
            "logits": self.rows.clone(),
            "slots": self.engine.slots,
            "row_index": row_index,
            "bitmask": None if words is None else words.to(self.subject.device),
            "drafts": None if self.drafts is None else self.subject.drafts(self.drafts),
        }

    def state(self) -> dict[str, Any]:
        return {"tables": self.engine.slots.tables}

    def columns(self, output: Any) -> list[exact.Columns]:
        rows = bits(output).view(len(output), -1).cpu().numpy()
        return [{"bits": row} for row in rows]


def _examples(subject: ProcessSubject, rng: Generator, rows: int, size: int) -> Iterator[_EditBatch]:
    """Make batches of random requests in every dtype, with a bitmask, and one with drafts."""
    size = subject.vocab_size(size)
    requests = {slot: random_request(rng, size) for slot in range(rows)}
    for turn, dtype in enumerate(subject.dtypes):
        order = rng.permutation(rows).tolist()
        allowed = rng.random((rows, size)) < 0.9 if subject.has_bitmask and turn % 3 != 1 else None
        yield _EditBatch(subject, requests, order, subject.logits(rng, rows, size, dtype), allowed)
    if subject.capabilities.drafts and rows <= exact.MANY:
        drafts = [[1, 2][: slot % 3] for slot in range(rows)]
        logits = subject.logits(rng, rows + sum(map(len, drafts)), size, subject.dtypes[0])
        yield _EditBatch(subject, requests, range(rows), logits, None, drafts)


KIT = OperationKit(
    view=ProcessSubject,
    properties=(
        *properties.all,
        *exact.lines("process_logits", "process ", _examples, device_shape=(16, 2000), graph=False),
    ),
    fuzz=fuzz,
)
