"""The subject in the operation ``process_logits``, requests in slots, and the comparison of edits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw.plugin import EDITS, Edit
from tokendraw_testing.kit.matrix import Place, places, width_class
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.reference import Array
from tokendraw_testing.reference_edits import edit

_BITS: Final = {2: torch.int16, 4: torch.int32}
_DIGITS: Final = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
_LEAST: Final = {torch.float32: -149, torch.float16: -24, torch.bfloat16: -133}
_ULPS: Final = 4
"""Most that rounding costs: half an ulp each for the bias, the repetition penalty, the product of the frequency
penalty, the cost of DRY and the three subtractions, and that of the bias once more, as a repetition penalty may double
it in ulp."""
MAX_TOKENS: Final = 64
_PLAIN_PARAMS: Final = SamplingParams()


@dataclass
class EditRequest:
    """Parameters, prompt and output of a request in a slot."""

    params: SamplingParams
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


@dataclass
class Engine:
    """Slots and their requests."""

    slots: RequestSlots
    requests: dict[int, EditRequest]
    edits: Collection[Edit] = EDITS
    """Names of the edits that requests may ask for."""

    def add(self, requests: Mapping[int, EditRequest]) -> None:
        """Add requests to empty slots, limited to :attr:`edits`; append their outputs token by token."""
        outputs = {}
        for slot, request in requests.items():
            disabled_edits: dict[str, Any] = {
                name: getattr(_PLAIN_PARAMS, name) for name in EDITS[1:] if name not in self.edits
            }
            request.params = replace(request.params, **disabled_edits)
            self.slots.add(slot, request.params, prompt_token_ids=request.prompt)
            self.requests[slot] = request
            outputs[slot], request.output = request.output, []
        for tokens in itertools.zip_longest(*outputs.values()):
            pairs = zip(outputs, tokens, strict=True)
            self.append({slot: token for slot, token in pairs if token is not None})

    def append(self, tokens: Mapping[int, int]) -> None:
        """Append a token to each of some slots."""
        device = self.slots.device
        row_index = torch.tensor(list(tokens), dtype=torch.int64, device=device)
        self.slots.append(row_index, torch.tensor(list(tokens.values()), dtype=torch.int64, device=device))
        for slot, token in tokens.items():
            self.requests[slot].output.append(token)

    def remove(self, slot: int) -> None:
        """Remove a request."""
        self.slots.remove(slot)
        del self.requests[slot]


class ProcessSubject(OperationSubject):
    """A subject in the operation ``process_logits``."""

    operation = "process_logits"

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Return the advertised dtypes."""
        return [getattr(torch, name) for name in self.capabilities.dtypes]

    def places(self) -> tuple[Place, ...]:
        """Cross the advertised dtypes, the served widths, and rows with and without drafts."""
        c = self.capabilities
        kinds = ("plain", "drafts") if c.drafts else ("plain",)
        return places([self.operation], c.dtypes, c.max_vocab_size, kinds)

    def rows_by_place(self, call: Any) -> Mapping[Place, int]:
        """Count the rows of a call by place."""
        rows, vocab_size = call.logits.shape
        dtype = str(call.logits.dtype).removeprefix("torch.")
        kind = "plain" if call.drafts is None else "drafts"
        return {Place(self.operation, dtype, width_class(vocab_size), kind): rows} if rows else {}

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
                _compare(trial, where, before[row], result[row], request, output, mask)
                row += 1


def _compare(
    trial: Trial,
    where: str,
    before: Tensor,
    result: Tensor,
    request: EditRequest,
    output: list[int],
    mask: Array | None,
) -> None:
    """Hold a row against the formulas: float32 bit for bit, and float64 within :data:`_ULPS`."""
    dtype, view = result.dtype, _BITS[result.element_size()]
    single = edit(before.to(torch.float32).numpy(), request.params, request.prompt, output, mask)
    double = edit(before.to(torch.float64).numpy(), request.params, request.prompt, output, mask)
    expected = torch.from_numpy(single.values).to(dtype)
    is_unedited, result64 = torch.from_numpy(~single.edited), result.to(torch.float64).numpy()
    is_unequal = torch.where(is_unedited, before.view(view), expected.view(view)) != result.view(view)
    is_unequal &= is_unedited | ~(expected.isnan() & result.isnan())
    with np.errstate(invalid="ignore"):
        is_far = np.abs(result64 - double.values) > _ULPS * _ulp(double.scale, dtype)
        is_far &= np.isfinite(double.values) & np.isfinite(result64)
    for (token,) in np.argwhere(is_unequal.numpy() | (is_far & single.edited))[:1].tolist():
        needed = float((before if is_unedited[token] else expected)[token])
        reason = "no edit" if is_unedited[token] else f"float64: {float(double.values[token]):.9g}"
        request_text = _edits_text(request.params) or "nothing"
        trial.require(
            False,
            f"{where}, id {token}: needs {needed:.9g} ({reason}), found {float(result[token]):.9g}, where a request "
            f"asks for {request_text}, its prompt is {request.prompt}, its output {output}, its bitmask "
            f"{'none' if mask is None else 'allows it' if mask[token] else 'forbids it'}",
        )


def _edits_text(params: SamplingParams) -> str:
    defaults = SamplingParams()
    values = {part.name: getattr(params, part.name) for part in fields(params)}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != getattr(defaults, name))


def _ulp(scale: Array, dtype: torch.dtype) -> Array:
    """Compute the distance of neighbours in a dtype, at numbers as large as ``scale``."""
    magnitude = np.where(np.isfinite(scale), scale, 1.0)
    exponent = np.frexp(magnitude)[1] - 1
    return np.asarray(np.exp2(np.maximum(exponent - _DIGITS[dtype], _LEAST[dtype]).astype(np.float64)))


def pack_bitmask(allowed: Array) -> Any:
    """Pack [rows, V] bool into words [rows, ceil(V / 32)] int32; every second row sets the bits behind the last id."""
    rows, vocab_size = allowed.shape
    bits = np.zeros((rows, -(-vocab_size // 32) * 32), bool)
    bits[::2] = True
    bits[:, :vocab_size] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")
