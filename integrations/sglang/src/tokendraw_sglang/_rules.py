"""Carries the rules and seeds of requests to the sampler, by hooks in SGLang's public ``HookRegistry``.

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
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingParams
from tokendraw.engines import changed_signature, read_rules, rule_off, rule_values, warmup_rules
from tokendraw_sglang._engine import BACKEND, OWN_DETERMINISM, PROCESS, log, mode_of, unserved

KEY = "tokendraw"
SOURCE = f"custom_params[{KEY!r}]"
ATTRIBUTE = "tokendraw_rules"
_BATCH = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_PARAMS = "sglang.srt.sampling.sampling_params.SamplingParams"
_CHOICE = "sglang.srt.arg_groups.overrides._deterministic_sampling_backend"
_PLAIN = SamplingParams(filter_order="joint")
"""SGLang's filters all look at the whole row."""
_NONE: Mapping[str, Tensor] = {}


def hook_batches() -> None:
    """Register the hooks; SGLang applies them after loading its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_PARAMS}.verify", verify, HookType.AROUND)
    for hook in (from_schedule_batch, filter_batch, merge_batch, copy_for_forward):
        HookRegistry.register(f"{_BATCH}.{hook.__name__}", hook, HookType.AROUND)


def rules_of(info: Any) -> Mapping[str, Tensor]:
    """Return the columns [B] of a batch's rules by name; the same object until a request joins or leaves."""
    rules: Mapping[str, Tensor] = vars(info).get(ATTRIBUTE, _NONE)
    return rules


def verify(original: Callable[..., None], params: Any, vocab_size: int) -> None:
    """Check the parameters of a request as SGLang does, and the rules.

    :raises InvalidParameterError: a ValueError: a name or a value is bad, or tokendraw draws no tokens here.
    """
    original(params, vocab_size)
    if _values(params):
        _check_engine()


def from_schedule_batch(original: Callable[..., Any], cls: Any, batch: Any, vocab_size: int) -> Any:
    """Make SGLang's parameters of a batch, with the seeds and rules of its requests.

    :param batch: the batch scheduled by SGLang; ``reqs[i].sampling_params.sampling_seed`` is an integer or None.
    """
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
    """Keep some rows of a batch."""
    original(info, keep_indices, keep_indices_device)
    rules = rules_of(info)
    if rules:
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
    """Copy a batch for the forward pass."""
    copied = original(info)
    if rules_of(info):
        setattr(copied, ATTRIBUTE, rules_of(info))
    return copied


def warmup_columns(rows: int, device: torch.device) -> list[Mapping[str, Tensor]]:
    """Make columns [rows] to compile kernels for: none, and those of rules named by a variable."""
    asked: list[dict[str, float]] = [{}, *warmup_rules(_PLAIN)]
    return [{name: _column([value] * rows, device) for name, value in rules.items()} for rules in asked]


def _values(params: Any) -> dict[str, float]:
    """Check and return the rules of a request by name."""
    custom = getattr(params, "custom_params", None) or {}
    return rule_values(read_rules(custom.get(KEY), SOURCE, _PLAIN), _PLAIN)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    """Write a column [B] on a device, bool of bools and float32 of numbers, without waiting."""
    dtype = torch.bool if all(isinstance(value, bool) for value in values) else torch.float32
    return uploaded(values, dtype, device)


def uploaded(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Write values on a device without waiting for it."""
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
_REPLACEMENT_SEED = 2**63 - 1


def hook_backend() -> None:
    """Register the hook on SGLang's choice of a backend in deterministic inference; the log says if it has changed."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        reason = changed_signature(_CHOICE, pkgutil.resolve_name(_CHOICE), ["view"])
    except (ImportError, AttributeError) as error:
        reason = str(error)
    if reason is None:
        HookRegistry.register(_CHOICE, keep_backend, HookType.AROUND)
    else:
        log.warning(OWN_DETERMINISM, reason)


def keep_backend(original: Callable[..., dict[str, Any]], view: Any) -> dict[str, Any]:
    """Choose the backend of deterministic inference as SGLang does, which takes ``pytorch``, but keep tokendraw.

    :param view: SGLang's settings.
    """
    is_ours = view.sampling_backend == BACKEND and view.rl_on_policy_target is None
    return {} if is_ours else original(view)


def seed_column(seeds: Sequence[int | None], device: torch.device) -> Tensor:
    """Write seeds as [B] int64 on a device, ``NO_SEED`` for None, without waiting for the device."""
    entries = [NO_SEED if seed is None else _REPLACEMENT_SEED if seed == NO_SEED else seed for seed in seeds]
    return uploaded(entries, torch.int64, device)


def _draws_here() -> bool:
    from sglang.srt.runtime_context import get_exec, get_spec

    if get_exec().kernel.sampling_backend != BACKEND:
        return False
    spec = get_spec()
    return spec.speculative_algorithm is None or (PROCESS.verifier is not None and mode_of(spec) is None)
