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
from tokendraw_sglang._engine import BACKEND

KEY = "tokendraw"
SOURCE = f"custom_params[{KEY!r}]"
ATTRIBUTE = "tokendraw_rules"
_BATCH = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_PARAMS = "sglang.srt.sampling.sampling_params.SamplingParams"
_CHOICE = "sglang.srt.arg_groups.overrides._deterministic_sampling_backend"
_PLAIN = SamplingParams(filter_order="joint")
"""SGLang's filters all look at the whole row."""
_NONE: Mapping[str, Tensor] = {}


def hook_rules() -> str | None:
    """Register the hooks; SGLang applies them after loading its plugins.

    :returns: None; or a method of SGLang with other parameters, so that rules are not served.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.sampling.sampling_params import SamplingParams as Requested

    methods = (
        (Requested, "verify", "self vocab_size"),
        (SamplingBatchInfo, "filter_batch", "self keep_indices keep_indices_device"),
        (SamplingBatchInfo, "copy_for_forward", "self"),
    )
    for owner, name, leading in methods:
        reason = changed_signature(f"{owner.__name__}.{name}", getattr(owner, name, None), leading.split())
        if reason is not None:
            return reason
    HookRegistry.register(f"{_PARAMS}.verify", verify, HookType.AROUND)
    HookRegistry.register(f"{_BATCH}.from_schedule_batch", with_rules, HookType.AROUND)
    HookRegistry.register(f"{_BATCH}.filter_batch", filter_rules, HookType.AROUND)
    HookRegistry.register(f"{_BATCH}.merge_batch", merge_rules, HookType.AROUND)
    HookRegistry.register(f"{_BATCH}.copy_for_forward", copy_rules, HookType.AROUND)
    return None


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


def with_rules(original: Callable[..., Any], cls: Any, batch: Any, vocab_size: int) -> Any:
    """Make SGLang's parameters of a batch, with the rules of its requests."""
    info = original(cls, batch, vocab_size)
    values = [_values(request.sampling_params) for request in batch.reqs]
    names = sorted({name for each in values for name in each})
    if names:
        device = info.temperatures.device
        columns = {name: [each.get(name, rule_off(name, _PLAIN)) for each in values] for name in names}
        setattr(info, ATTRIBUTE, {name: _column(column, device) for name, column in columns.items()})
    return info


def filter_rules(
    original: Callable[..., None], info: Any, keep_indices: Sequence[int], keep_indices_device: Tensor
) -> None:
    """Keep some rows of a batch."""
    original(info, keep_indices, keep_indices_device)
    rules = rules_of(info)
    if rules:
        setattr(info, ATTRIBUTE, {name: column[keep_indices_device] for name, column in rules.items()})


def merge_rules(original: Callable[..., None], info: Any, other: Any) -> None:
    """Merge two batches; rows of a batch without a rule get its value that is off."""
    sides = [(rules_of(each), len(each)) for each in (info, other)]
    names = sorted({name for rules, _ in sides for name in rules})
    device = info.temperatures.device
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


def copy_rules(original: Callable[..., Any], info: Any) -> Any:
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
    from tokendraw_sglang._verification import unserved

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


def hook_seeds() -> None:
    """Register the hooks; SGLang applies them after loading its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_BATCH}.from_schedule_batch", with_seeds, HookType.AROUND)
    HookRegistry.register(f"{_BATCH}.merge_batch", merge_seeds, HookType.AROUND)


def hook_backend() -> str | None:
    """Register the hook; SGLang applies it after loading its plugins, before it looks at its settings.

    :returns: None; or how the function of SGLang has changed, so that its backend draws in deterministic inference.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        reason = changed_signature(_CHOICE, pkgutil.resolve_name(_CHOICE), ["view"])
    except (ImportError, AttributeError) as error:
        return str(error)
    if reason is None:
        HookRegistry.register(_CHOICE, keep_backend, HookType.AROUND)
    return reason


def keep_backend(original: Callable[..., dict[str, Any]], view: Any) -> dict[str, Any]:
    """Choose the backend of deterministic inference as SGLang does, which takes ``pytorch``, but keep tokendraw.

    :param view: SGLang's settings.
    """
    is_ours = view.sampling_backend == BACKEND and view.rl_on_policy_target is None
    return {} if is_ours else original(view)


def with_seeds(original: Callable[..., Any], cls: Any, batch: Any, vocab_size: int) -> Any:
    """Make SGLang's parameters of a batch, with the seeds of its requests.

    :param batch: the batch scheduled by SGLang; ``reqs[i].sampling_params.sampling_seed`` is an integer or None.
    """
    info = original(cls, batch, vocab_size)
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    if info.sampling_seed is None and any(seed is not None for seed in seeds) and _draws_here():
        info.sampling_seed = seed_column(seeds, info.temperatures.device)
    return info


def merge_seeds(original: Callable[..., None], info: Any, other: Any) -> None:
    """Merge two batches as SGLang does, after a column of seeds in either batch is matched by a column in the other."""
    for unseeded, seeded in ((info, other), (other, info)):
        if unseeded.sampling_seed is None and seeded.sampling_seed is not None:
            unseeded.sampling_seed = seeded.sampling_seed.new_full((len(unseeded),), NO_SEED)
    original(info, other)


def seed_column(seeds: Sequence[int | None], device: torch.device) -> Tensor:
    """Write seeds as [B] int64 on a device, ``NO_SEED`` for None, without waiting for the device."""
    entries = [NO_SEED if seed is None else _REPLACEMENT_SEED if seed == NO_SEED else seed for seed in seeds]
    return uploaded(entries, torch.int64, device)


def _draws_here() -> bool:
    from sglang.srt.runtime_context import get_exec, get_spec

    from tokendraw_sglang._verification import is_served, mode_of

    if get_exec().kernel.sampling_backend != BACKEND:
        return False
    spec = get_spec()
    return spec.speculative_algorithm is None or (is_served() and mode_of(spec) is None)
