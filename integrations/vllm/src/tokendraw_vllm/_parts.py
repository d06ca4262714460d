"""The replaced parts of vLLM: the lines of the log about each, and the agreement of ranks with equal tokens.

The log has each sentence once per process. Of several ranks the first chooses the plugins for all, and the process of a
rank on which one of them fails ends, and so the engine: or each rank would continue a text of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tokendraw.engines import choose_once, format_error, rank_error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

V1_SAMPLER, ADMISSION = "V1 sampler", "admission"
SAMPLER, EDITING, VERIFICATION, DRAFTING, SCORING = (
    f"V2 {part}" for part in ("sampler", "editing", "verification", "drafting", "scoring")
)
"""Replaced parts of vLLM."""
ATTRIBUTE = "_tokendraw"
"""Attribute of vLLM's objects for what tokendraw keeps of them, and of functions that it has replaced."""
SECONDS_TO_END = 5.0
"""After so many, the process of a failed rank ends whatever it waits for."""
_reasons_of_losses: set[str] = set()
_log = logging.getLogger("vllm.tokendraw")  # below vLLM's logger, whose handlers and levels apply


def log_replaced(part: str, by: str) -> None:
    _say(logging.INFO, f"tokendraw: {part} replaced ({by})")


def log_kept(reason: str, *, part: str = "", is_asked_for: bool = False) -> None:
    """Log why vLLM keeps its sampler: a warning, since vLLM may register plugins before it shows lower levels."""
    subject = f"{part} left alone" if part else "left alone"
    _say(logging.INFO if is_asked_for else logging.WARNING, f"tokendraw: {subject}: {reason}")


def log_lost(rules: Sequence[str], reason: str) -> None:
    """Log lost rules of requests, once for each reason."""
    if rules and reason not in _reasons_of_losses:
        _reasons_of_losses.add(reason)
        _say(logging.WARNING, f"tokendraw: requests lose their rules {', '.join(rules)}: {reason}")


@functools.cache
def _say(level: int, sentence: str) -> None:
    _log.log(level, sentence)


def replace_once(owner: Any, name: str, replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function of vLLM, once in a process, by the result of ``replace``."""
    original = getattr(owner, name)
    if not hasattr(original, ATTRIBUTE):
        made = functools.wraps(original)(replace(original))
        setattr(made, ATTRIBUTE, True)
        setattr(owner, name, made)


def served(
    original: Callable[..., Any], kind: Callable[..., Any], serve: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Make a function in the place of vLLM's that serves calls; where it returns None, vLLM's own is called.

    :param kind: makes what ``serve`` gets from the arguments.
    """

    def function(*given: Any, **named: Any) -> Any:
        try:
            call = kind(*given, **named)
        except TypeError:  # a newer version of vLLM asks for more
            return original(*given, **named)
        result = serve(call)
        return original(*given, **named) if result is None else result

    return function


Names: TypeAlias = Mapping[str, Sequence[str]]
"""Names by operation, as ``choices`` of a loaded provider."""
NamesOfFirst: TypeAlias = Names | str | None
"""What the first of several ranks chose for all, or why it chose none; None: this process chooses the best."""
Chosen = TypeVar("Chosen")


def choose_for_all(choose: Callable[[], Chosen]) -> Chosen | None:
    """Call a function on the first rank alone, in vLLM's main thread, for all ranks; None without other ranks."""
    groups = _groups()
    if not groups:
        return None
    for group in groups:
        choose = functools.partial(choose_once, choose, group)
    return choose()


REFERENCE = "native"
"""Plain PyTorch: quicker than the sampling in PyTorch of vLLM's V1 runner on a CPU, and slower than kernels."""


class LeftAlone(Exception):  # noqa: N818 - nothing failed
    """The reason against a part of vLLM, although tokendraw could serve the part."""


def check_faster(plugin: str, what: str, device: Any) -> None:
    """Leave a part to vLLM where the best plugin is the reference on a GPU."""
    if plugin == REFERENCE and device.type != "cpu":
        raise LeftAlone(f"'{REFERENCE}' is the best {what} for {device}, and no quicker than vLLM's own")


def names_or_reason(choose: Callable[[], Names]) -> Names | str:
    """Return the names that a function chooses; or in words why it can choose none: vLLM's own stays on all ranks."""
    try:
        return choose()
    except LeftAlone as reason:
        return str(reason)
    except Exception as error:
        return format_error(error)


def chosen_names(names: NamesOfFirst) -> Names | None:
    if isinstance(names, str):
        raise LeftAlone(names)
    return names


def raise_if_several(error: Exception) -> None:
    """End this process, with its rank in the message, if several draw the same tokens: then vLLM ends the engine.

    Of an exception on any rank but the first vLLM logs a traceback and goes on, with other tokens on that rank. Its
    clean-up of a worker's process waits in NCCL for the other ranks, which wait for this one.
    """
    if _groups():
        reason = rank_error(error)
        if multiprocessing.parent_process() is not None:
            _say(logging.ERROR, str(reason))
            faulthandler.dump_traceback_later(SECONDS_TO_END, file=2, exit=True)  # takes no lock of Python's
        raise SystemExit(str(reason)) from error


@contextlib.contextmanager
def vllm_stays_if_it_raises(part: str) -> Iterator[None]:
    """Log why a block loads nothing for a part of vLLM; where there are several ranks, an error ends the process."""
    try:
        yield
    except LeftAlone as reason:
        log_kept(str(reason), part=part)
    except Exception as error:
        raise_if_several(error)
        log_kept(format_error(error), part=part)


def give_up(part: str, sampler: str, error: Exception) -> None:
    """Log a failed call, and vLLM's draws from now on; with several ranks, end the process."""
    raise_if_several(error)
    _say(logging.WARNING, f"tokendraw: {part} is vLLM's own again: '{sampler}' raised {format_error(error)}")


def _groups() -> list[ProcessGroup]:
    """Return the groups of this rank: across prefill context parallelism and tensor parallelism.

    Of pipeline-parallel ranks the last ones draw, and each data-parallel engine draws for its own requests.
    """
    # Not imported: a thread calls this beside vLLM's imports, and without the module there are no other ranks.
    state = sys.modules.get("vllm.distributed.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return []
    groups = (state.get_pcp_group(), state.get_tp_group())
    return [group.cpu_group for group in groups if group.world_size > 1]
