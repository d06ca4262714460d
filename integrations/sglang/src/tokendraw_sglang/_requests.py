"""Carries the parameters of requests to the sampler: rules and seeds by hooks in SGLang's public ``HookRegistry``.

Rules are ``custom_params={"tokendraw": {...}}``. ``SamplingParams.verify`` refuses bad ones where SGLang takes a
request. A batch holds a column [B] for each rule as an attribute of its ``SamplingBatchInfo``, which SGLang's
filtering, merging and copying of batches does not know.

SGLang fills ``sampling_seed`` with ``--enable-deterministic-inference`` alone, with 42 for requests without a seed. A
hook has it keep tokendraw as its backend there. Elsewhere a hook fills ``sampling_seed`` for batches that tokendraw
draws where a request has a seed; SGLang's own ``filter_batch`` and ``merge_batch`` carry it along. Another gives a
batch without seeds a column before it is merged with one that has seeds: SGLang joins columns only where both batches
have them.

SGLang's own verification of drafts reads ``sampling_seed`` too and would draw with :data:`NO_SEED` as with a seed, as
would its draws of drafts, so speculative decoding gets seeds where tokendraw verifies and SGLang draws no drafts.

SGLang keeps tensors on the device and a few facts about them on the host. The same tensors come back step after step
until a request joins or leaves, so the metadata made from them is cached.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw import BatchFacts, InvalidParameterError, SamplingMetadata, SamplingParams
from tokendraw.engines import RULE_FIELDS, changed_signature, read_rules, rule_off, rule_values, warmup_rules
from tokendraw_sglang._engine import (
    BACKEND,
    FILTERS,
    OWN_DETERMINISM,
    PROCESS,
    is_deterministic,
    log,
    mode_of,
    unserved,
)

KEY = "tokendraw"
SOURCE = f"custom_params[{KEY!r}]"
ATTRIBUTE = "tokendraw_rules"
_BATCH = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_PARAMS = "sglang.srt.sampling.sampling_params.SamplingParams"
_CHOICE = "sglang.srt.arg_groups.overrides._deterministic_sampling_backend"
_PLAIN = SamplingParams(filter_order="joint")
"""SGLang's filters all look at the whole row."""
_NONE: Mapping[str, Tensor] = {}


def register_hooks() -> None:
    """Register the hooks, which SGLang applies after loading its plugins; the log names a changed choice of backend."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_PARAMS}.verify", verify, HookType.AROUND)
    for hook in (from_schedule_batch, filter_batch, merge_batch, copy_for_forward):
        HookRegistry.register(f"{_BATCH}.{hook.__name__}", hook, HookType.AROUND)
    try:
        reason = changed_signature(_CHOICE, pkgutil.resolve_name(_CHOICE), ["view"])
    except (ImportError, AttributeError) as error:
        reason = str(error)
    if reason is None:
        HookRegistry.register(_CHOICE, keep_backend, HookType.AROUND)
    else:
        log.warning(OWN_DETERMINISM, reason)


def rules_of(info: Any) -> Mapping[str, Tensor]:
    """Return the columns [B] of a batch's rules by name; the same object until a request joins or leaves."""
    rules: Mapping[str, Tensor] = vars(info).get(ATTRIBUTE, _NONE)
    return rules


def verify(original: Callable[..., None], params: Any, vocab_size: int) -> None:
    original(params, vocab_size)
    if _values(params):
        _check_engine()


def from_schedule_batch(original: Callable[..., Any], cls: Any, batch: Any, vocab_size: int) -> Any:
    """Make SGLang's parameters of a batch, with the seeds and rules of its requests."""
    info, requested = original(cls, batch, vocab_size), [request.sampling_params for request in batch.reqs]
    seeds, device = [params.sampling_seed for params in requested], info.temperatures.device
    if info.sampling_seed is None and any(seed is not None for seed in seeds) and _draws_here():
        info.sampling_seed = seed_column(seeds, device)
    values = [_values(params) for params in requested]
    if names := sorted({name for each in values for name in each}):
        columns = {name: [each.get(name, rule_off(name, _PLAIN)) for each in values] for name in names}
        setattr(info, ATTRIBUTE, {name: _column(column, device) for name, column in columns.items()})
    return info


def filter_batch(
    original: Callable[..., None], info: Any, keep_indices: Sequence[int], keep_indices_device: Tensor
) -> None:
    original(info, keep_indices, keep_indices_device)
    if rules := rules_of(info):
        setattr(info, ATTRIBUTE, {name: column[keep_indices_device] for name, column in rules.items()})


def merge_batch(original: Callable[..., None], info: Any, other: Any) -> None:
    """Merge two batches; rows of a batch without seeds, or without a rule, get the value that stands for none."""
    sides = [(rules_of(each), len(each)) for each in (info, other)]
    names = sorted({name for rules, _ in sides for name in rules})
    device = info.temperatures.device
    for unseeded, seeded in ((info, other), (other, info)):
        if unseeded.sampling_seed is None and seeded.sampling_seed is not None:
            unseeded.sampling_seed = seeded.sampling_seed.new_full((len(unseeded),), NO_SEED)
    original(info, other)
    if names:
        parts = {
            name: [
                rules[name] if name in rules else _column([rule_off(name, _PLAIN)] * rows, device)
                for rules, rows in sides
            ]
            for name in names
        }
        setattr(info, ATTRIBUTE, {name: torch.cat(columns) for name, columns in parts.items()})


def copy_for_forward(original: Callable[..., Any], info: Any) -> Any:
    copied = original(info)
    if rules_of(info):
        setattr(copied, ATTRIBUTE, rules_of(info))
    return copied


def warmup_columns(rows: int, device: torch.device) -> list[Mapping[str, Tensor]]:
    """Make columns [rows] to compile kernels for: none, and those of rules named by a variable."""
    asked: list[dict[str, float]] = [{}, *warmup_rules(_PLAIN)]
    return [{name: _column([value] * rows, device) for name, value in rules.items()} for rules in asked]


def _values(params: Any) -> dict[str, float]:
    custom = getattr(params, "custom_params", None) or {}
    return rule_values(read_rules(custom.get(KEY), SOURCE, _PLAIN), _PLAIN)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    """Write a column [B] on a device, bool of bools and float32 of numbers, without waiting."""
    dtype = torch.bool if all(isinstance(value, bool) for value in values) else torch.float32
    return uploaded(values, dtype, device)


def uploaded(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    tensor = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda", device="cpu")
    return tensor.to(device, non_blocking=True)


def _check_engine() -> None:
    """Refuse rules where SGLang draws, as far as this process knows."""
    backend, reason = BACKEND, None
    with contextlib.suppress(Exception):  # not every process of SGLang publishes its settings
        from sglang.srt.runtime_context import get_exec, get_spec

        backend, spec = get_exec().kernel.sampling_backend, get_spec()
        reason = None if spec.speculative_algorithm is None else unserved(spec)
    if backend != BACKEND:
        raise InvalidParameterError(
            f"{SOURCE} needs --sampling-backend {BACKEND}, found {backend}. Start SGLang with it, or leave out "
            "the rules."
        )
    if reason is not None:
        raise InvalidParameterError(
            f"{SOURCE} needs every token drawn by tokendraw, found that {reason}. Leave out one of them."
        )


NO_SEED = -(2**63)
"""Entry of ``sampling_seed`` for a request without a seed. A request with this very seed draws as with 2**63 - 1."""


def keep_backend(original: Callable[..., dict[str, Any]], view: Any) -> dict[str, Any]:
    """Choose the backend of deterministic inference as SGLang does, which takes ``pytorch``, but keep tokendraw."""
    is_ours = view.sampling_backend == BACKEND and view.rl_on_policy_target is None
    return {} if is_ours else original(view)


def seed_column(seeds: Sequence[int | None], device: torch.device) -> Tensor:
    """Write seeds as [B] int64 on a device, ``NO_SEED`` for None, without waiting for the device."""
    entries = [NO_SEED if seed is None else 2**63 - 1 if seed == NO_SEED else seed for seed in seeds]
    return uploaded(entries, torch.int64, device)


def _draws_here() -> bool:
    from sglang.srt.runtime_context import get_exec, get_spec

    if get_exec().kernel.sampling_backend != BACKEND:
        return False
    spec = get_spec()
    return spec.speculative_algorithm is None or (PROCESS.verifier is not None and mode_of(spec) is None)


_TENSORS = ("temperatures", *(each.column for each in FILTERS.values()), "sampling_seed")
_FACTS = ("is_any_greedy", *(each.flag for each in FILTERS.values()), "max_top_k")


def metadata_of(info: Any, positions: Tensor, width: int = 1) -> SamplingMetadata:
    """Describe a batch. Waits for no device.

    :param info: a ``SamplingBatchInfo`` of B requests.
    :param positions: [B * width] integer: index in its sequence of the token behind each row of logits; read if a
        request may have a seed.
    :param width: rows of each request, which stand one behind the other.
    """
    temperature, rules = info.temperatures.view(-1), rules_of(info)
    if info.is_any_greedy:  # SGLang writes a temperature of 0 as top_k 1 at temperature 1
        temperature = temperature.masked_fill(info.top_ks <= 1, 0.0)
    filters = {name: getattr(info, each.column) for name, each in FILTERS.items() if getattr(info, each.flag)}
    from_moments = {name: column for name, column in rules.items() if name not in RULE_FIELDS}
    fields: dict[str, Any] = {name: column for name, column in rules.items() if name in RULE_FIELDS}
    if "top_p" in filters and len(filters) + len(rules) > 1 and "joint" not in fields:  # one has no order
        fields["joint"] = torch.ones_like(temperature, dtype=torch.bool)
    seed = info.sampling_seed
    return SamplingMetadata(
        temperature=temperature,
        **filters,
        **fields,
        filters=from_moments or None,
        seed=seed,
        seeded=None if seed is None or is_deterministic() else seed != NO_SEED,
        positions=None if seed is None else positions,
        row_index=None if width == 1 else rows_of_requests(len(temperature), width, temperature.device),
        facts=BatchFacts(
            any_greedy=info.is_any_greedy,
            max_top_k=info.max_top_k,
            all_top_k=info.max_top_k is not None,
            any_top_k_first="joint" in rules,
            filters=tuple(from_moments),
        ),
    )


def rows_of_requests(requests: int, width: int, device: torch.device) -> Tensor:
    return torch.arange(requests * width, device=device).div_(width, rounding_mode="floor")


class LastMetadata:
    """Describes the batches of a run, and caches the last description."""

    def __init__(self) -> None:
        self._tensors: tuple[object, ...] = ()
        """Those of the last batch, kept alive."""
        self._facts: tuple[Any, ...] = ()
        self._metadata = SamplingMetadata()

    def metadata(self, info: Any, positions: Tensor, width: int = 1) -> SamplingMetadata:
        """Describe a batch; see :func:`metadata_of`. Tensors of the last batch are not read again."""
        tensors = (*(getattr(info, name) for name in _TENSORS), rules_of(info))
        stream = current_stream(info.temperatures.device)
        facts = (*(getattr(info, name) for name in _FACTS), stream, width)
        if facts != self._facts or any(a is not b for a, b in zip(self._tensors, tensors, strict=True)):
            self._metadata = metadata_of(info, positions, width)
            self._tensors, self._facts = tensors, facts
        last = self._metadata
        return last if last.seed is None else last.with_positions(positions)


def current_stream(device: torch.device) -> int | None:
    """Return the stream of a CUDA device: tensors made on one stream may not be ready on another."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
