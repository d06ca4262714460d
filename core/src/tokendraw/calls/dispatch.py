"""What ``load`` returns, and how it dispatches calls, the same way for every operation.

The steps of a call: check, route, run, count, fall back. Whose fault a failed call is, and which backend serves next:

=====================================================  ================================================================
the failed call                                        what follows
=====================================================  ================================================================
was wrong itself, lacked memory, or was captured,      the error is raised; the backend stays
or a filter from moments failed
went to an explicit choice, or to its companion        the error is raised with a note; the backend stays
may not fall back, or loaded with companion=False      the error is raised; the backend stays
had no other backend available, first or later         ``SamplerUnavailableError`` is raised from the error
was the first of its signature                         the next best backend serves it, replaces the failed backend, and
                                                       a warning says so once (an error with ``TOKENDRAW_STRICT``); if
                                                       every other backend fails as well, the first error is raised
                                                       with a note and the backend stays: the call is to blame
was a later one                                        the error is raised with a note; the backend stays
=====================================================  ================================================================

Compilations fail in the first call of a signature (:meth:`tokendraw.calls.call.Call.signature`). This call runs on
copies of the tensors, for a failed backend may have modified them past torch's notice. Later calls run on the tensors
themselves: copies would cost a read and a write of the logits. Nothing is copied during the capture of a CUDA graph,
nor where no other backend is available. Faults found by ``TOKENDRAW_DEBUG`` are raised in any case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from tokendraw._torch.importing import untraced
from tokendraw._torch.tensors import is_capturing
from tokendraw._torch.threads import reseed_if_due
from tokendraw.backends.description import Operation
from tokendraw.backends.discovery.guard import format_origin, log_traceback, package_of
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.backends.resolution.decide import disable_setting, install, undo
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.negotiator import Negotiator, Rejections, is_out_of_memory, rejected
from tokendraw.calls.routing import LoadedBackend, Selection, route, serving_backend
from tokendraw.calls.rows import RowCall
from tokendraw.errors import (
    FilterError,
    InvalidInputError,
    InvalidParameterError,
    PluginError,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    UntestedUpstreamWarning,
    announce,
    format_error,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by bytes an element, to compare bits: NaN differs from itself."""


def dispatch(negotiator: Negotiator, operation: Operation, call: Call) -> Any:
    """Check a call, run the rows on supporting backends, and return the output.

    A call with the same metadata and form as a checked call is not checked again.

    :raises SamplerUnavailableError: no backend here supports a property that the call may have, or that one has failed.
    :raises PluginError: an output has the wrong form, ``debug`` found another fault, or a backend tried to exit.
    """
    selection = negotiator.selections.get(operation.name)
    check = None if selection is None else call.cached_check(selection.key)
    reseed_if_due()
    if selection is None or check is None:
        call.check(negotiator.device, negotiator.need)
        if negotiator.debug and not is_capturing():
            call.check_values()
        selection = negotiator.select(operation)
    backend = selection.backend
    try:
        if check is None:
            return _serve(negotiator, selection, call)
        output = _run(negotiator, backend, call, check)
    except CallFailedError as error:
        failure = error
    else:
        negotiator.count(backend.name, call.num_rows)
        return output
    return _fall_back(negotiator, operation, selection, failure, call)


def _run(negotiator: Negotiator, backend: LoadedBackend, call: Call, check: OutputCheck) -> Any:
    """Run a call on a backend and check the output; with ``debug`` the values and the inputs, too."""
    is_debugged, before = negotiator.debug and not is_capturing(), {}
    if is_debugged:
        tensors = {name: tensor.detach() for name, tensor in call.tensors().items()}
        before = {name: (tensor, tensor.clone()) for name, tensor in tensors.items()}
    try:
        output = call.run(backend.object)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _check_unmodified(backend, before, error)
        origin = format_origin(error, backend.package or package_of(backend.object))
        raise CallFailedError(backend, error, f"its call raised {format_error(error)}{origin}") from error
    wrong = check(output)
    if is_debugged:
        _check_unmodified(backend, before)
        wrong_values = wrong or call.wrong_values(output, negotiator.need)
        if wrong_values is not None:
            raise _contract_error(backend, f"to return {wrong_values}")
    if wrong is not None:
        fault = _contract_error(backend, f"to return {wrong}")
        raise CallFailedError(backend, fault, f"its call needs to return {wrong}")
    return output


def _check_unmodified(
    backend: LoadedBackend, before: Mapping[str, tuple[Tensor, Tensor]], error: BaseException | None = None
) -> None:
    for name, (tensor, copy) in before.items():
        bits = _BITS[tensor.element_size()]
        changed = tensor.view(bits) != copy.view(bits)
        unit = "rows" if changed.dim() > 1 else "elements"
        changed = changed.any(dim=-1) if changed.dim() > 1 else changed
        if bool(changed.any()):
            found = f"{int(changed.sum())} of {len(changed)} {unit} changed"
            raise _contract_error(backend, f"to leave {name} unmodified, found {found}") from error


def _contract_error(backend: LoadedBackend, need: str) -> PluginError:
    name = backend.name
    return PluginError(f"{name!r} needs {need}. Mend the plugin, or set TOKENDRAW_DISABLE={name}.")


def _serve(negotiator: Negotiator, selection: Selection, call: Call) -> Any:
    """Run a checked call, each row on a supporting backend."""
    routed = route(selection, call)
    if isinstance(routed, LoadedBackend):
        output = _run_first(negotiator, selection, routed, call)
        negotiator.count(routed.name, call.num_rows)
        return output
    companion = routed.companion
    assert isinstance(call, RowCall)
    part, companion_part = routed.calls(call)
    # First the companion: should the backend overwrite the inputs, these rows are not drawn from them.
    companion_output = _run_first(negotiator, selection, companion, companion_part, is_copy=True)
    output = _run_first(negotiator, selection, selection.backend, part)
    output = routed.merged(output, companion_output, call.facts.logprobs_width(call.vocab_size))
    negotiator.count(selection.backend.name, routed.num_staying)
    negotiator.count(companion.name, routed.num_leaving)
    return output


def _run_first(
    negotiator: Negotiator, selection: Selection, backend: LoadedBackend, call: Call, *, is_copy: bool = False
) -> Any:
    """Run a call on a backend, with copies of the tensors in the first call of a signature."""
    signature = call.signature() if selection.can_fall_back and call.may_fall_back else None
    is_first = signature is not None and backend.is_new(signature)
    attempt = call
    if is_first and not is_copy and not is_capturing():
        try:
            attempt = call.copied()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
    check = attempt.output_check(negotiator.need)
    try:
        output = _run(negotiator, backend, attempt, check)
    except CallFailedError as error:
        error.had_copies = is_copy or attempt is not call
        raise
    if is_first:
        backend.signatures.add(signature)
    if backend is selection.backend and not negotiator.debug:
        call.cache_check(selection.key, check)
    return output


def _fall_back(
    negotiator: Negotiator, operation: Operation, selection: Selection, failure: CallFailedError, call: Call
) -> Any:
    """Serve a failed call by a successor, or raise. One thread at a time: a later one finds the successor."""
    refusal = refusal_of(failure, selection, call)
    if refusal is not None:
        raise refusal
    failures = [failure]
    with negotiator.lock:
        if negotiator.discover is None or not negotiator.companions:
            raise failure.visible_error
        rejections, selection = negotiator.rejections, negotiator.select(operation)
        while True:
            last = failures[-1]
            try:
                if last.backend in selection.backends:
                    selection, rejections = successor_of(operation, negotiator, rejections, last, call)
                output = _serve(negotiator, selection, call)
                break
            except CallFailedError as another:
                failures.append(another)
                unavailable = None
            except SamplerUnavailableError as error:
                unavailable = error
            if unavailable is not None and len(failures) == 1:
                raise unavailable from failure.error
            last = failures[-1]
            if unavailable is not None or not (last.is_verdict and last.had_copies):
                found = (f"{f.backend.name!r} failed on this batch too: {f.reason}" for f in failures[1:])
                words = f"{'; '.join(found)}. So nobody is replaced. Check what the call was given."
                raise _noted(failure.visible_error, words)
        successor = serving_backend(selection, call).name
        warn_of_failures(failures, selection, successor, strict=negotiator.strict, debug=negotiator.debug)
        negotiator.adopt(rejections)
        negotiator.selections[operation.name] = selection
    return output


class Provider:
    """A loaded operation. :func:`tokendraw.load` makes one of the class of the operation, with its methods.

    Failures of calls have the consequences that :class:`tokendraw.Sampler` describes.
    """

    _operations: ClassVar[tuple[Operation, ...]]
    """The operations that the object has methods for; ``name`` and ``resolution`` are those of the first."""

    def __init__(self, negotiator: Negotiator) -> None:
        self._negotiator = negotiator

    @property
    def device(self) -> torch.device:
        """Device of all tensors, passed and returned."""
        return self._negotiator.device

    @property
    def name(self) -> str:
        """Name of the chosen plugin."""
        return self._negotiator.select(self._operations[0]).backend.name

    @property
    def resolution(self) -> Resolution:
        """Decisions on every candidate, with the chosen plugin."""
        return self._negotiator.select(self._operations[0]).resolution

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Names of the chosen plugin and its companions, by the operations that were negotiated so far.

        Other ranks that draw the same tokens load exactly these: ``tokendraw.load_sampler(choices)``.
        """
        return self._negotiator.choices()

    @untraced
    def prepare(self, operation: str | None = None) -> None:
        """Negotiate, build and prove the backend now rather than in the first call.

        :param operation: one of several that this object has methods for; None: its own.
        :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is available.
        """
        records = {record.name: record for record in self._operations}
        self._negotiator.select(records[operation or self._operations[0].name])

    @untraced
    def stats(self) -> dict[str, int]:
        """Return the number of rows drawn by each plugin here, drafts included.

        Rows that were verified do not count, nor do warmups and replays of graphs.
        """
        return self._negotiator.stats()

    @untraced
    def warmup(self, *arguments: Any, **options: Any) -> float:
        """Return 0.0: the operation has no kernels to compile or load. :class:`tokendraw.Sampler` warms up."""
        return 0.0

    def __repr__(self) -> str:
        return f"<tokendraw.{self._operations[0].name} {self.name!r} on {self.device}>"


def provider_method(
    operation: Operation, call: Callable[_P, Call], output: type[_T]
) -> Callable[Concatenate[Any, _P], _T]:
    """Make a provider's method of the function that makes its calls, with the name, signature and docstring of that.

    :param output: class of what the method returns.
    """

    def served(self: Provider, /, *args: _P.args, **options: _P.kwargs) -> _T:
        served: _T = dispatch(self._negotiator, operation, call(*args, **options))
        return served

    served.__name__ = served.__qualname__ = call.__name__
    served.__doc__ = call.__doc__
    stub = inspect.signature(call)
    of_object = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method = untraced(served)
    method.__signature__ = stub.replace(  # type: ignore[attr-defined]
        parameters=[of_object, *stub.parameters.values()], return_annotation=output
    )
    return method


# A failed call.


class CallFailedError(Exception):
    """A backend raised, or returned an output of the wrong form."""

    def __init__(self, backend: LoadedBackend, error: BaseException, reason: str) -> None:
        self.backend = backend
        self.error = error
        """The exception that the backend raised, or a PluginError that describes the output."""
        self.reason = reason
        """Says what speaks against the backend."""
        self.had_copies = False
        """Whether the backend was given copies, so that the caller's tensors are unmodified."""

    @property
    def visible_error(self) -> BaseException:
        """The error, or a PluginError in place of ``SystemExit`` and its like, for the host's sake."""
        if isinstance(self.error, Exception):
            return self.error
        visible = PluginError(f"{self.backend.name!r} failed: {self.reason}")
        visible.__cause__ = self.error
        return visible

    @property
    def is_verdict(self) -> bool:
        """Whether the error may speak against the backend, unlike a mistake of the caller or of a filter.

        Nor does too little memory, which another backend would hide: the batch was too large for the free memory.
        """
        is_mistake = isinstance(self.error, (InvalidInputError, InvalidParameterError, FilterError))
        return not (is_mistake or is_out_of_memory(self.error))


def refusal_of(failure: CallFailedError, selection: Selection, call: Call) -> BaseException | None:
    """Return the error to raise at once; None if another backend may serve the call."""
    if not failure.is_verdict or is_capturing():
        return failure.visible_error
    choice = selection.resolution.choice
    if choice.sampler is not None:
        name, asked = failure.backend.name, f"asked for by {choice.source or 'the caller'}"
        role = "" if name == choice.sampler else f"{name!r} serves what {choice.sampler!r} cannot. "
        note = f"{role}{choice.sampler!r} was {asked}, so no other one takes over. {undo(choice)}"
        return _noted(failure.visible_error, note)
    if not call.may_fall_back:
        return failure.visible_error
    if selection.can_fall_back and not failure.had_copies:
        name = failure.backend.name
        return _noted(
            failure.visible_error,
            f"{name!r} may have overwritten its inputs before it failed, so no other one is given them. Only the "
            f"first call of each kind, which runs on copies, can be taken over. Set TOKENDRAW_DISABLE={name} to use "
            "another one.",
        )
    return None


def successor_of(
    operation: Operation, negotiator: Negotiator, rejections: Rejections, failure: CallFailedError, call: Call
) -> tuple[Selection, Rejections]:
    name, reason = failure.backend.name, failure.reason
    rejections = rejected(rejections, operation, name, reason, failure.error)
    selection, rejections = negotiator.settle(operation, rejections)
    backend = selection.backend
    missing = backend.reason_against(call)
    if missing is None or selection.companions:
        return selection, rejections
    raise SamplerUnavailableError(
        f"Nothing here can serve {missing}, which this batch may hold: {name!r} failed, {reason}. "
        f"{install('another one that can', selection.resolution.decisions)}, or, if the batch holds none, say so in "
        f"{call.hint_field}."
    )


def warn_of_failures(
    failures: Sequence[CallFailedError], selection: Selection, successor: str, *, strict: bool, debug: bool
) -> None:
    """Warn once a process of each failed backend, and of the successor's untested versions; raise if strict."""
    resolution, outcome = selection.resolution, f" Using {successor!r} from here on."
    for failure in failures:
        name = failure.backend.name
        log_traceback(f"a call of {name!r}", failure.error, aloud=debug)
        disable = disable_setting([name], resolution.choice)
        text = f"{name!r} failed: {failure.reason}.{outcome} Set {disable} to silence this."
        try:
            announce(SamplerFallbackWarning, text, strict=strict, once_for=("call", name), outcome=outcome)
        except SamplerFallbackWarning as warning:
            raise warning from failure.error
    for text in resolution.untested:
        announce(UntestedUpstreamWarning, text, strict=strict)


def _noted(error: BaseException, note: str) -> BaseException:
    if note not in getattr(error, "__notes__", ()):  # a plugin may raise one object again and again
        error.add_note(note)
    return error
