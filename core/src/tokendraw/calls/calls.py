"""Makes the calls of one operation, the same way for every operation: check, route, watch, run, count, fall back."""

from __future__ import annotations

import logging
from typing import Any

from tokendraw._torch.forked import reseed_if_due
from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.discovery.guard import log_traceback
from tokendraw.backends.resolution import advice
from tokendraw.calls import fallback
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.fallback import CallFailedError
from tokendraw.calls.negotiation import Negotiation
from tokendraw.calls.routing import BuiltProvider, Route, Serving
from tokendraw.calls.session import Session
from tokendraw.calls.watch import Watch, fault
from tokendraw.errors.exceptions import (
    SamplerFallbackWarning,
    SamplerUnavailableError,
    TokendrawError,
    UntestedUpstreamWarning,
)
from tokendraw.errors.notices import announce

_log = logging.getLogger("tokendraw")


class Calls:
    """Serves the calls of one operation with the negotiated provider, its companion and their successors."""

    def __init__(self, session: Session, operation: Operation, serving: Serving | None = None) -> None:
        """Prepare calls.

        :param serving: None: negotiated when it is first asked for.
        """
        self.operation = operation
        self._session = session
        self._serving = serving
        self._told: set[tuple[str, str, bool]] = set()
        session.on_other_facts(self._leave_the_rejected)

    @property
    def serving(self) -> Serving:
        """Return who serves.

        :raises SamplerUnavailableError: nobody does, or not the one that was asked for.
        """
        serving = self._serving
        if serving is None:
            with self._session.negotiating:
                if self._serving is None:
                    self._serving = self._session.settle(self.operation)
                serving = self._serving
        return serving

    def make(self, call: Call) -> Any:
        """Check a call, have it served, and return the output.

        :raises InvalidInputError: before anything is launched.
        :raises SamplerUnavailableError: it may hold what nobody here can serve, or whoever could has failed.
        :raises PluginError: what a provider returned has the wrong form, or ``debug`` found another fault; or a
            provider raised what would end the program.
        """
        reseed_if_due()
        serving = self._serving
        if serving is not None:
            member = serving.chosen
            check = call.recall(serving.key)
            if check is not None and not member.failed_kinds:
                try:
                    output = _run(member, call, check)
                except CallFailedError as error:
                    failed = error
                    failed.kind = call.kind() if serving.can_fall_back else None
                else:
                    self._session.counts.add(member.name, call.num_rows)
                    return output
                if call.is_collective:
                    raise failed.shown
                return self._recovered(serving, failed, call)
        return self._looked_at(call)

    def _looked_at(self, call: Call) -> Any:
        """Make a call that has to be checked and routed."""
        if call.is_collective:
            return self._made_together(call)
        session = self._session
        call.check(session.device, session.need)
        if session.debug and not is_capturing():
            call.check_values()
        serving = self.serving
        try:
            return self._served(serving, call)
        except CallFailedError as error:
            failed = error
        return self._recovered(serving, failed, call)

    def _made_together(self, call: Call) -> Any:
        """Make a collective call: the chosen provider serves all of it, and nobody takes over, or processes would part.

        What speaks against it here goes to the other processes first, so that none of them waits for this one.
        """
        session, serving = self._session, self.serving
        name, wrong, debug = serving.chosen.name, None, session.debug and not is_capturing()
        try:
            call.check(session.device, session.need)
            if debug:
                call.check_values()
            serving.check_alone(call)
        except TokendrawError as error:
            wrong = error
        call.join(name, session.need, wrong)
        watch = Watch(name, call.tensors()) if debug else None
        check = call.output_check(session.need)
        try:
            output = _run(serving.chosen, call, check, watch, session.need)
        except CallFailedError as error:
            failed = error
        else:
            if not session.debug:
                call.remember(serving.key, check)
            session.counts.add(name, call.num_rows)
            return output
        raise failed.shown

    def _served(self, serving: Serving, call: Call) -> Any:
        """Have a checked call served, each row by the provider that can.

        :raises CallFailedError: from what a provider raised.
        """
        route = serving.route(call, splits_rows=self.operation.splits_rows)
        split = route.split
        if split is None:
            output = self._call(serving, route.member, call, is_plain=not route.lacking)
        else:
            assert serving.companion is not None
            rest, own = call.shared(split)
            # First the companion: should the other one overwrite the inputs, these rows are not drawn from them.
            apart = self._call(serving, serving.companion, own, is_copy=True)
            output = call.merged(split, self._call(serving, route.member, rest), apart)
        if route.lacking:
            self._tell_of_routing(serving, route)
        leaving = split.num_leaving if split else 0
        self._session.counts.add(route.member.name, call.num_rows - leaving)
        if leaving and serving.companion:
            self._session.counts.add(serving.companion.name, leaving)
        return output

    def _call(
        self,
        serving: Serving,
        member: BuiltProvider,
        call: Call,
        *,
        is_copy: bool = False,
        is_plain: bool = False,
    ) -> Any:
        """Call one provider.

        :param is_copy: the tensors are copies of what the caller gave.
        :param is_plain: the chosen provider serves all of it: calls like this one need not be looked at again.
        :raises CallFailedError: from what it raised, or it returned what is no output.
        """
        given, kind, is_usual = call, None, True
        if serving.can_fall_back:
            kind = call.kind()
            is_usual = kind in member.served_kinds and not member.failed_kinds
            if not is_usual and not is_copy:
                given = fallback.copied(call, member, kind)
        check = given.output_check(self._session.need)
        debug = self._session.debug and not is_capturing()
        watch = Watch(member.name, given.tensors()) if debug else None
        try:
            output = _run(member, given, check, watch, self._session.need)
        except CallFailedError as error:
            error.kind, error.had_copy = kind, is_copy or given is not call
            raise
        if not is_usual:
            member.note_success(kind)
            is_usual = kind in member.served_kinds  # not if there are too many kinds
        if is_plain and is_usual and not self._session.debug:
            call.remember(serving.key, check)
        return output

    def _recovered(self, serving: Serving, failed: CallFailedError, call: Call) -> Any:
        """Have a failed call served by another provider, which replaces the failed one; or raise.

        One thread at a time: one that fails later finds the successor in its place.
        """
        refusal = fallback.refusal(failed, serving)
        if refusal is not None:
            raise refusal
        failures, session = [failed], self._session
        with session.negotiating:
            if session.facts is None or not (session.facts.companions and self.operation.falls_back):
                raise failed.shown
            facts, serving = session.facts, self.serving
            while True:
                try:
                    if failures[-1].member in (serving.chosen, serving.companion):
                        facts, serving = fallback.successor(self.operation, facts, failures[-1], call)
                    output = self._served(serving, call)
                    break
                except CallFailedError as another:
                    failures.append(another)
                    unavailable = None
                except SamplerUnavailableError as error:
                    unavailable = error
                if unavailable is not None and len(failures) == 1:
                    raise unavailable from failed.error
                if unavailable is not None or not failures[-1].may_be_followed:
                    raise fallback.failed_by_all(failures)
            self._tell_of_failures(failures, serving, call)
            self._serving = serving
            session.replace(facts)
        return output

    def _leave_the_rejected(self, facts: Negotiation) -> None:
        """Negotiate anew at the next call if a provider that serves was rejected in another operation."""
        if self._serving is not None and not facts.stands(self._serving):
            self._serving = None

    def _tell_of_failures(self, failures: list[CallFailedError], serving: Serving, call: Call) -> None:
        resolution = serving.resolution
        for failed in failures:
            name = failed.member.name
            log_traceback(f"a call of {name!r}", failed.error, aloud=self._session.debug)
            successor = serving.member(call).name
            text = advice.failed_call(name, failed.reason, successor, resolution.choice)
            try:
                announce(
                    SamplerFallbackWarning,
                    text,
                    strict=self._session.strict,
                    once_for=("call", name),
                    outcome=advice.using_from_here_on(successor),
                )
            except SamplerFallbackWarning as warning:
                raise warning from failed.error
        for text in resolution.untested:
            announce(UntestedUpstreamWarning, text, strict=self._session.strict)

    def _tell_of_routing(self, serving: Serving, route: Route) -> None:
        """Log the first time that rows of a kind go to the companion, or that a whole call goes with them."""
        assert serving.companion is not None
        chosen, companion = serving.chosen.name, serving.companion.name
        for kind in route.lacking:
            if (chosen, kind, bool(route.split)) in self._told:
                continue
            self._told.add((chosen, kind, bool(route.split)))
            whole = "" if route.split else f", and with them the whole batch, since {route.because}"
            _log.info("%r cannot serve %s: they go to %r%s", chosen, kind, companion, whole)


def _run(
    member: BuiltProvider, call: Call, check: OutputCheck, watch: Watch | None = None, need: Any = None
) -> Any:
    """Make a call of a provider and look at what it returns.

    :param need: of the caller, for the watch.
    :raises CallFailedError: from what it raised, or it returned what is no output.
    :raises PluginError: the watch found a fault.
    """
    try:
        output = call.run(member.backend)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if watch is not None:
            watch.check_given(error)
        raise CallFailedError(member, error, fallback.raised(error, member)) from error
    wrong = check(output)
    if watch is not None:
        watch.check_given()
        watch.check_returned(wrong or call.wrong_values(output, need))
    if wrong is not None:
        found, reason = fault(member.name, f"to return {wrong}"), f"its call needs to return {wrong}"
        raise CallFailedError(member, found, reason)
    return output
