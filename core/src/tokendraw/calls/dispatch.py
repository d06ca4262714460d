"""Dispatches the calls of an operation, the same way for every operation: check, route, run, count, fall back."""

from __future__ import annotations

from typing import Any

from tokendraw._torch.tensors import is_capturing
from tokendraw._torch.threads import reseed_if_due
from tokendraw.backends.description.operation import Operation
from tokendraw.calls import fallback
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.drawing import Sample
from tokendraw.calls.fallback import CallFailedError
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.output_checks import MutationCheck, contract_error
from tokendraw.calls.routing import route, serving_backend
from tokendraw.calls.selection import LoadedBackend, Selection
from tokendraw.errors.exceptions import SamplerUnavailableError


def dispatch(negotiator: Negotiator, operation: Operation, call: Call) -> Any:
    """Check a call, run the rows on supporting backends, and return the output.

    A call with the same metadata and form as a checked call is not checked again.

    :raises SamplerUnavailableError: the call may have a property that no backend here supports, or a backend that
        supports it has failed.
    :raises PluginError: the output of a backend has the wrong form, or ``debug`` found another fault; or a backend
        raised an exception that would end the program.
    """
    selection = negotiator.selections.get(operation.name)
    check = None if selection is None else call.cached_check(selection.key)
    reseed_if_due()
    if selection is None or check is None:
        validate(negotiator, call)
        selection = negotiator.select(operation)
    backend = selection.backend
    try:
        if check is None:
            return _serve(negotiator, selection, call)
        output = run(negotiator, backend, call, check)
    except CallFailedError as error:
        failure = error
    else:
        negotiator.count(backend.name, call.num_rows)
        return output
    return _fall_back(negotiator, operation, selection, failure, call)


def validate(negotiator: Negotiator, call: Call) -> None:
    """Check the arguments of a call; with ``debug`` the values, too."""
    call.check(negotiator.device, negotiator.need)
    if negotiator.debug and not is_capturing():
        call.check_values()


def run(negotiator: Negotiator, backend: LoadedBackend, call: Call, check: OutputCheck) -> Any:
    """Run a call on a backend and check the output; with ``debug`` the values and the inputs, too.

    :raises CallFailedError: the backend raised, or its output has the wrong form.
    :raises PluginError: ``debug`` found a fault.
    """
    mutation = None
    if negotiator.debug and not is_capturing():
        mutation = MutationCheck(backend.name, call.tensors())
    try:
        output = call.run(backend.object)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if mutation is not None:
            mutation.check(error)
        raise CallFailedError(backend, error, fallback.reason_of(error, backend)) from error
    wrong = check(output)
    if mutation is not None:
        mutation.check()
        wrong_values = wrong or call.wrong_values(output, negotiator.need)
        if wrong_values is not None:
            raise contract_error(backend.name, f"to return {wrong_values}")
    if wrong is not None:
        fault = contract_error(backend.name, f"to return {wrong}")
        raise CallFailedError(backend, fault, f"its call needs to return {wrong}")
    return output


def _serve(negotiator: Negotiator, selection: Selection, call: Call) -> Any:
    """Run a checked call, each row on a supporting backend."""
    routed = route(selection, call)
    if isinstance(routed, LoadedBackend):
        output = _run_first(negotiator, selection, routed, call)
        negotiator.count(routed.name, call.num_rows)
        return output
    companion: LoadedBackend = routed.companion
    assert isinstance(call, Sample)
    part, companion_part = call.divided(routed)
    # First the companion: should the backend overwrite the inputs, these rows are not drawn from them.
    companion_output = _run_first(negotiator, selection, companion, companion_part, is_copy=True)
    output = _run_first(negotiator, selection, selection.backend, part, is_part=True)
    output = call.merged(routed, output, companion_output)
    negotiator.count(selection.backend.name, routed.num_staying)
    negotiator.count(companion.name, routed.num_leaving)
    return output


def _run_first(
    negotiator: Negotiator,
    selection: Selection,
    backend: LoadedBackend,
    call: Call,
    *,
    is_copy: bool = False,
    is_part: bool = False,
) -> Any:
    """Run a call on a backend, with copies of the tensors in the first call of a signature.

    :param is_copy: the tensors are copies of the caller's.
    :param is_part: other rows of the caller's call are served by the companion.
    """
    signature = call.signature() if selection.can_fall_back and call.may_fall_back else None
    is_first = signature is not None and backend.is_new(signature)
    attempt = fallback.copied(call) if is_first and not is_copy else call
    check = attempt.output_check(negotiator.need)
    try:
        output = run(negotiator, backend, attempt, check)
    except CallFailedError as error:
        error.had_copies = is_copy or attempt is not call
        raise
    if is_first:
        backend.signatures.add(signature)
    if backend is selection.backend and not is_part and not negotiator.debug:
        call.cache_check(selection.key, check)
    return output


def _fall_back(
    negotiator: Negotiator,
    operation: Operation,
    selection: Selection,
    failure: CallFailedError,
    call: Call,
) -> Any:
    """Serve a failed call by a successor, or raise. One thread at a time: a later one finds the successor."""
    refusal = fallback.refusal(failure, selection, call)
    if refusal is not None:
        raise refusal
    failures = [failure]
    with negotiator.lock:
        if negotiator.discover is None or not negotiator.companions:
            raise failure.visible_error
        rejections, selection = negotiator.rejections, negotiator.select(operation)
        while True:
            try:
                if failures[-1].backend in selection.backends:
                    selection, rejections = fallback.successor(
                        operation, negotiator, rejections, failures[-1], call
                    )
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
                raise fallback.failed_by_all(failures)
        successor = serving_backend(selection, call).name
        fallback.warn_of(failures, selection, successor, strict=negotiator.strict, debug=negotiator.debug)
        negotiator.adopt(rejections)
        negotiator.selections[operation.name] = selection
    return output
