"""Carries the parameters of requests to the sampler: rules and seeds by hooks in SGLang's public ``HookRegistry``.

Rules are ``custom_params={"tokendraw": {...}}``. ``SamplingParams.verify`` refuses bad ones where SGLang takes a
request. A batch holds those of each row as an attribute of its ``SamplingBatchInfo``, which SGLang's filtering,
merging and copying of batches does not know.

SGLang fills ``sampling_seed`` with ``--enable-deterministic-inference`` alone, with 42 for requests without a seed. A
hook has it keep tokendraw as its backend there. Elsewhere a hook fills ``sampling_seed`` for batches that tokendraw
draws where a request has a seed; SGLang's own ``filter_batch`` and ``merge_batch`` carry it along. Another gives a
batch without seeds a column before it is merged with one that has seeds: SGLang joins columns only where both batches
have them.

SGLang's own verification of drafts reads ``sampling_seed`` too and would draw with :data:`NO_SEED` as with a seed, as
would its draws of drafts, so speculative decoding gets seeds where tokendraw verifies and SGLang draws no drafts.

SGLang keeps tensors on the device and a few facts about them on the host. The same tensors come back step after step
until a request joins or leaves, so the metadata made from them is cached. Batches like SGLang's are made up too, so
that kernels are compiled for their dtypes before any request.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from tokendraw import BatchFacts, InvalidParameterError, Sampler, SamplingMetadata, SamplingParams
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
Rules = tuple[Mapping[str, float], ...]
"""The rules of each row of a batch, by name; empty where no row has any."""


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


def rules_of(info: Any) -> Rules:
    """Return the rules of a batch; the same object until a request joins or leaves."""
    rules: Rules = vars(info).get(ATTRIBUTE, ())
    return rules


def _hold(info: Any, rules: Rules) -> None:
    setattr(info, ATTRIBUTE, rules if any(rules) else ())


def verify(original: Callable[..., None], params: Any, vocab_size: int) -> None:
    original(params, vocab_size)
    if _values(params):
        _check_engine()


def from_schedule_batch(original: Callable[..., Any], cls: Any, batch: Any, vocab_size: int) -> Any:
    info, requested = original(cls, batch, vocab_size), [request.sampling_params for request in batch.reqs]
    seeds = [params.sampling_seed for params in requested]
    if info.sampling_seed is None and any(seed is not None for seed in seeds) and _draws_here():
        info.sampling_seed = seed_column(seeds, info.temperatures.device)
    _hold(info, tuple(map(_values, requested)))
    return info


def filter_batch(
    original: Callable[..., None], info: Any, keep_indices: Sequence[int], keep_indices_device: Tensor
) -> None:
    original(info, keep_indices, keep_indices_device)
    if rules := rules_of(info):
        _hold(info, tuple(rules[row] for row in keep_indices))


def merge_batch(original: Callable[..., None], info: Any, other: Any) -> None:
    """Merge two batches; rows of a batch without seeds get the value that stands for none."""
    own, others = (rules_of(each) or ({},) * len(each) for each in (info, other))
    for unseeded, seeded in ((info, other), (other, info)):
        if unseeded.sampling_seed is None and seeded.sampling_seed is not None:
            unseeded.sampling_seed = seeded.sampling_seed.new_full((len(unseeded),), NO_SEED)
    original(info, other)
    _hold(info, own + others)


def copy_for_forward(original: Callable[..., Any], info: Any) -> Any:
    copied = original(info)
    setattr(copied, ATTRIBUTE, rules_of(info))
    return copied


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
    temperature, rows = info.temperatures.view(-1), rules_of(info)
    rules = {
        name: _column([row.get(name, rule_off(name, _PLAIN)) for row in rows], temperature.device)
        for name in sorted({name for row in rows for name in row})
    }
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


class Last:
    """Keeps the last description of a batch: its tensors, kept alive by it, are not read again."""

    def __init__(self) -> None:
        self._tensors: tuple[object, ...] = ()
        self._facts: tuple[Any, ...] | None = None
        self._metadata = SamplingMetadata()

    def metadata(self, info: Any, positions: Tensor, width: int = 1) -> SamplingMetadata:
        tensors = (*(getattr(info, name) for name in _TENSORS), rules_of(info))
        facts = (*(getattr(info, name) for name in _FACTS), width)
        device, describe = info.temperatures.device, partial(metadata_of, info, positions, width)
        last = self.described(describe, device, tensors, facts)
        return last if last.seed is None else last.with_positions(positions)

    def described(
        self,
        describe: Callable[[], SamplingMetadata],
        device: torch.device,
        tensors: tuple[object, ...],
        facts: tuple[Any, ...],
    ) -> SamplingMetadata:
        # tensors made on one stream may not be ready on another
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        facts = (*facts, stream)
        if facts != self._facts or any(a is not b for a, b in zip(self._tensors, tensors, strict=True)):
            self._metadata, self._tensors, self._facts = describe(), tensors, facts
        return self._metadata


# Batches to compile kernels for.

BATCH_SIZES = (1, 64)
_FILTERS = ((), *((name,) for name in FILTERS), ("top_k", "top_p"), tuple(FILTERS))


def warm_up(
    sampler: Sampler,
    logits: Tensor,
    *,
    width: int = 1,
    mode: Literal["block", "rejection"] | None = None,
) -> None:
    """Draw from every kind of batch; torch's random state is left alone, and on a CPU nothing is drawn.

    :param logits: [B, V], whose shape, dtype, layout and device the batches to come have too. Not read.
    :param width: rows of each request in the verifications to come; 1: there will be none.
    :param mode: how they judge drafts by probabilities; None: they draw the token of each row.
    """
    device, vocab_size = logits.device, logits.shape[1]
    verified: dict[str, Any] = {}
    if mode is not None:
        verified = {"max_drafts": width - 1, "verify_modes": [mode], "draft_kinds": ["probs"]}
    sampler.warmup(
        vocab_size,
        dtypes=[logits.dtype],
        row_stride=max(logits.stride(0), vocab_size),
        metadata=batches(
            device,
            largest_k=vocab_size,
            width=1 if mode else width,
            seeds=mode is None or is_deterministic(),
        ),
        progress=False,
        **verified,
    )


def batches(
    device: torch.device, largest_k: int, *, width: int = 1, seeds: bool = True
) -> Iterator[SamplingMetadata]:
    """Yield the metadata of every combination of filters, greedy rows, seeds and rules named by a variable.

    :param width: rows of each request where trees of drafts are walked; each combination comes with one row too.
    """
    seedings, asked = (False, True) if seeds else (False,), [{}, *warmup_rules(_PLAIN)]
    for requests in BATCH_SIZES:
        for filters, any_greedy, any_seeded, rules in product(_FILTERS, (False, True), seedings, asked):
            info = _info(requests, device, filters, any_greedy, any_seeded, largest_k)
            _hold(info, (rules,) * requests)
            for rows in sorted({1, width}):
                yield metadata_of(info, torch.arange(requests * rows, device=device), rows)


def _info(
    rows: int,
    device: torch.device,
    filters: tuple[str, ...],
    any_greedy: bool,
    any_seeded: bool,
    largest_k: int,
) -> SimpleNamespace:
    """Fill in the fields for :func:`metadata_of`, in SGLang's dtypes; every second row is plain or greedy."""
    is_plain_row = torch.arange(rows, device=device) % 2 == 0
    values = {name: each.example if name in filters else each.off for name, each in FILTERS.items()}
    if "top_k" in filters:
        values["top_k"] = min(values["top_k"], largest_k)
    dtypes = dict.fromkeys(FILTERS, torch.float32) | {"top_k": torch.int32}
    info = SimpleNamespace(
        temperatures=torch.full((rows, 1), 0.8, device=device, dtype=torch.float32),
        sampling_seed=torch.where(is_plain_row, 7, NO_SEED) if any_seeded else None,
        is_any_greedy=any_greedy,
        max_top_k=values["top_k"] if "top_k" in filters else None,
        **{
            each.column: torch.full((rows,), values[name], dtype=dtypes[name], device=device)
            for name, each in FILTERS.items()
        },
        **{each.flag: name in filters for name, each in FILTERS.items()},
    )
    if any_greedy:
        info.top_ks.masked_fill_(~is_plain_row, 1)
        info.need_top_k_sampling = True
    return info
