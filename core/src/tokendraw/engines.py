"""The face for adapters to inference engines: compatibility with the installed engine, and rules of its requests.

An adapter is a distribution of its own. It names a function in the entry point group ``tokendraw.engines``::

    # pyproject.toml
    #   [project.entry-points."tokendraw.engines"]
    #   acme = "tokendraw_acme:state"

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tokendraw.backends.discovery.entry_points import installed_version
from tokendraw.backends.discovery.guard import guarded
from tokendraw.backends.discovery.settings import is_switched_off
from tokendraw.errors import PluginError, SamplerUnavailableError, SettingsError, all_of, format_error
from tokendraw.parameters.engine_rules import RULE_FIELDS, read_rules, rule_off, rule_values, warmup_rules

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
    :ivar tested: Versions that the adapter was tested with; the adapter does nothing for any other version.
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
) -> EngineState:
    """Compare the installed engine with the versions tested by an adapter. Raises nothing.

    :param distributions: names under which the engine is published; the first one that is installed counts.
    :param tested: versions, without a local part such as ``+cpu``.
    :param misfit: says why the engine's code does not fit; None: it does. Called if all else is well. It may import
        the engine: what it raises becomes the reason.
    :param would: what the adapter would replace.
    :param switch: variable that switches the adapter off with 0 or false, such as ``TOKENDRAW_VLLM``.
    """
    versions = (installed_version(name) for name in distributions)
    installed = next((version for version in versions if version is not None), None)
    try:
        if switch is not None and is_switched_off(switch):
            reason: str | None = f"switched off by {switch}"
        elif installed is None:
            reason = f"{engine} is not installed"
        elif installed.partition("+")[0] not in tested:
            reason = f"{engine} {installed} is untested, tested are {all_of(tested)}"
        else:
            reason = guarded(f"importing {engine} {installed}", misfit)
    except SettingsError as error:
        reason = str(error).removesuffix(".")
    except PluginError as error:
        reason = str(error)
    return EngineState(
        engine=engine,
        installed=installed,
        tested=tuple(tested),
        applies=reason is None,
        reason=f"would replace {would}" if reason is None else reason,
    )


def choose_once(choose: Callable[[], Chosen], group: ProcessGroup | None) -> Chosen:
    """Have the first rank of a group choose for all of its ranks, which draw the same tokens.

    Every rank calls it at the same place of its program, from the thread that calls the group's other collectives, and
    waits for the first.

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
        raise SamplerUnavailableError(
            f"The first of {dist.get_world_size(group)} ranks failed to choose: {reason}"
        )
    return chosen  # type: ignore[return-value]  # with a reason alone it is None


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
