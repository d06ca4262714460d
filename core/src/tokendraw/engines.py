"""The face for adapters to inference engines: compatibility with the installed engine, and rules of its requests.

An adapter is a distribution of its own. It names a function in the entry point group ``tokendraw.engines``, as in
``acme = "tokendraw_acme:state"``::

    from tokendraw.engines import EngineState, changed_signature, examine

    def misfit() -> str | None:
        from acme.sampler import Sampler

        return changed_signature("Sampler.draw", Sampler.draw, ("self", "logits"))

    def state() -> EngineState:
        return examine("Acme", distributions=("acme",), tested=("1.2.0",), misfit=misfit, would="its sampler")

The function takes nothing, changes nothing, and may import the engine: ``tokendraw doctor`` calls it in a process of
its own. The adapter asks the same function before it touches the engine, so that both say the same.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from tokendraw.backends.discovery.entry_points import installed_version
from tokendraw.backends.discovery.guard import guarded
from tokendraw.backends.discovery.settings import WARMUP_RULES, is_switched_off
from tokendraw.backends.resolution.candidate import State
from tokendraw.errors import (
    InvalidParameterError,
    PluginError,
    SamplerUnavailableError,
    SettingsError,
    all_of,
    format_error,
    format_value,
    nearest_or_all,
    type_name,
)
from tokendraw.filters.installed import find_filter, installed_filters
from tokendraw.parameters.fields import ORDERS, PARAMETERS
from tokendraw.parameters.params import SamplingParams

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ENTRY_POINT_GROUP = "tokendraw.engines"
Chosen = TypeVar("Chosen")

__all__ = [
    "ENTRY_POINT_GROUP",
    "RULE_FIELDS",
    "EngineState",
    "changed_signature",
    "choose_once",
    "examine",
    "format_error",
    "rank_error",
    "read_rules",
    "rule_off",
    "rule_values",
    "warmup_rules",
]


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """An adapter's findings about its engine.

    :ivar engine: Name of the engine, in the spelling of its users.
    :ivar installed: Installed version; None if the engine is not installed.
    :ivar tested: Versions that the adapter was tested with.
    :ivar applies: Whether the adapter would draw for this engine.
    :ivar reason: Phrase without a full stop: what the adapter would replace, or why the adapter does not apply.
    """

    engine: str
    installed: str | None
    tested: tuple[str, ...]
    applies: bool
    reason: str


def examine(
    engine: str,
    *,
    distributions: Sequence[str],
    tested: Sequence[str],
    misfit: Callable[[], str | None],
    would: str,
    switch: str | None = None,
    uses_untested: bool = False,
) -> EngineState:
    """Compare the installed engine with the versions tested by an adapter. Raises nothing.

    :param distributions: names under which the engine is published; the first one that is installed counts.
    :param tested: versions, without a local part such as ``+cpu``.
    :param misfit: says why the engine's code does not fit; None: it does. What it raises is the reason, too.
    :param would: what the adapter would replace.
    :param switch: variable that switches the adapter off with 0 or false, such as ``TOKENDRAW_VLLM``.
    :param uses_untested: whether the adapter applies to other versions too, where ``misfit`` finds nothing.
    """
    installed = next(filter(None, map(installed_version, distributions)), None)
    try:
        if switch is not None and is_switched_off(switch):
            reason: str | None = f"switched off by {switch}"
        elif installed is None:
            reason = f"{engine} is not installed"
        elif installed.partition("+")[0] not in tested and not uses_untested:
            reason = f"{engine} {installed} is untested, tested are {all_of(tested)}"
        else:
            reason = guarded(f"importing {engine} {installed}", misfit)
    except (SettingsError, PluginError) as error:
        reason = str(error).removesuffix(".")
    return EngineState(
        engine=engine,
        installed=installed,
        tested=tuple(tested),
        applies=reason is None,
        reason=f"would replace {would}" if reason is None else reason,
    )


def choose_once(choose: Callable[[], Chosen], group: ProcessGroup | None) -> Chosen:
    """Have the first rank of a group choose for all of its ranks, which draw the same tokens.

    Every rank calls it at the same place of its program, in the thread of the group's other collectives, and waits.

    :param choose: called on the first rank alone. Its result has to be picklable, as ``Sampler.choices`` is.
    :param group: of a backend for CPUs, such as gloo; None: this process draws alone.
    :raises SamplerUnavailableError: on the other ranks, if ``choose`` raised on the first. The first raises that error.
    """
    import torch.distributed as dist

    if group is None:
        return choose()
    error: Exception | None = None
    answer: list[tuple[Chosen | None, str | None]] = [(None, None)]
    if dist.get_rank(group) == 0:
        try:
            answer = [(choose(), None)]
        except Exception as raised:  # the other ranks wait for an answer
            error, answer = raised, [(None, format_error(raised))]
    dist.broadcast_object_list(answer, src=dist.get_global_rank(group, 0), group=group)
    chosen, reason = answer[0]
    if error is not None:
        raise error
    if reason is not None:
        ranks = dist.get_world_size(group)
        raise SamplerUnavailableError(f"The first of {ranks} ranks failed to choose: {reason}")
    return chosen  # type: ignore[return-value]  # with a reason alone it is None


def rank_error(error: Exception) -> RuntimeError:
    """Word the failure of one of several ranks that draw the same tokens, with its rank named once."""
    import torch.distributed as dist

    words = f"tokendraw failed on rank {dist.get_rank()}: "
    return RuntimeError(words + format_error(error).removeprefix(f"RuntimeError: {words}"))


def changed_signature(name: str, function: object, leading: Sequence[str]) -> str | None:
    """Word the difference between the leading parameters of an engine's function and the adapter's expectation.

    :param name: of the function, for the message.
    :param function: the function; None: the engine has none of that name.
    :param leading: names that its parameters have to begin with; more may follow.
    :returns: the reason in words; None if they are as expected.
    """
    found = list(inspect.signature(function).parameters) if callable(function) else []
    if found[: len(leading)] == list(leading):
        return None
    return f"{name!r} needs the parameters {', '.join(leading)}, found {', '.join(found) or 'none'}"


# Rules that a request of an engine asks tokendraw for, beside the engine's own parameters.

_PARAMETERS = tuple(parameter.name for parameter in PARAMETERS if not parameter.is_common)
_FIELDS = (*_PARAMETERS, "filter_order")
"""Fields of :class:`SamplingParams` that engines have no parameter for."""
RULE_FIELDS = (*_PARAMETERS, *ORDERS)
"""Fields of the metadata for them, each with a tensor in a batch."""
_PLAIN = SamplingParams()


def read_rules(rules: Any, source: str, plain: SamplingParams = _PLAIN) -> SamplingParams:
    """Check the rules of a request: a filter order, and filters that the engine has no parameter for, by name.

    :param rules: {name: value}, or its JSON text, since some engines pass on no mappings; None: none.
    :param source: argument of the engine with the rules, for messages: ``extra_args['tokendraw']``.
    :param plain: parameters of a request without rules: the engine's filter order.
    :returns: parameters with these rules and no others.
    :raises InvalidParameterError: a ValueError: a name is unknown, or belongs to the engine, or a value is bad.
    """
    if rules is None:
        return plain
    if isinstance(rules, str):
        try:
            rules = json.loads(rules)
        except ValueError:
            raise InvalidParameterError(
                f"{source} needs {{name: value}} or its JSON text, found {format_value(rules)}. Correct it."
            ) from None
    if not isinstance(rules, Mapping):
        raise InvalidParameterError(f"{source} needs {{name: value}}, found {type_name(rules)}. Pass a dict.")
    values = {name: value for name, value in rules.items() if name in _FIELDS}
    filters = {name: value for name, value in rules.items() if name not in _FIELDS}
    for name in filters:
        _require_rule(name, source)
    try:
        return replace(plain, filters=filters or None, **values).check()
    except InvalidParameterError as error:
        words = str(error).removeprefix("'filters': ")
        raise InvalidParameterError(f"{source}: {words}") from None


def rule_values(params: SamplingParams, plain: SamplingParams = _PLAIN) -> dict[str, float]:
    """Return the entries of a request in tensors of a batch, by filter from moments and by :data:`RULE_FIELDS`.

    :param params: result of :func:`read_rules`.
    :param plain: as there. Entries that it has too are left out.
    :returns: numbers; bools for orders.
    """
    fields = _field_values(params)
    changed = {name: value for name, value in fields.items() if value != _field_values(plain)[name]}
    return changed | {name: float(value) for name, value in (params.filters or {}).items()}


def rule_off(name: str, plain: SamplingParams = _PLAIN) -> float:
    """Return the entry of requests that do not ask for a rule of :func:`rule_values`."""
    return _field_values(plain)[name] if name in RULE_FIELDS else float(find_filter(name).off)


def warmup_rules(plain: SamplingParams = _PLAIN) -> list[dict[str, float]]:
    """Return the entries of made-up requests, one for each set of the rules named by ``TOKENDRAW_WARMUP_RULES``.

    Kernels differ by the rules that stand together in a batch.

    :param plain: as in :func:`read_rules`.
    :raises SettingsError: a name is unknown.
    """
    names = dict.fromkeys(filter(None, map(str.strip, os.environ.get(WARMUP_RULES, "").split(","))))
    for name in (each for each in names if each not in _FIELDS):
        _require_rule(name, repr(WARMUP_RULES), SettingsError)
    examples: Any = {"filter_order": "temperature_last", **{p.name: p.example for p in PARAMETERS}}
    result = []
    for chosen in (each for size in range(len(names)) for each in combinations(names, size + 1)):
        values = {name: examples[name] for name in chosen if name in _FIELDS}
        filters = {name: find_filter(name).off + 1.0 for name in chosen if name not in _FIELDS}
        result.append(rule_values(replace(plain, filters=filters, **values), plain))
    return result


def _field_values(params: SamplingParams) -> dict[str, float]:
    numbers = {name: float(getattr(params, name)) for name in _PARAMETERS}
    return {**numbers, **{order: params.filter_order == order for order in ORDERS}}


def _require_rule(name: Any, source: str, error: type[Exception] = InvalidParameterError) -> None:
    try:
        find_filter(name)  # remembers what is installed: requests come by the thousand
    except InvalidParameterError:
        known = [*(each.name for each in installed_filters() if each.state is State.AVAILABLE), *_FIELDS]
        if name in {field.name for field in fields(SamplingParams)}:
            raise error(
                f"{source} needs rules that the engine has no parameter for, {all_of(known)}, found {name!r}. Pass "
                "the engine's own parameter, or leave it out."
            ) from None
        hint = nearest_or_all(name, known)
        raise error(
            f"{source} needs names of filters or parameters, found {format_value(name)}, {hint}. Correct it."
        ) from None
