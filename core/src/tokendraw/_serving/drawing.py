"""A batch that is drawn, each row by the one who serves it: the calls, watched, counted and told of."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.output import SamplerOutput
from tokendraw._exchange.output_checks import wrong_output, wrong_tokens
from tokendraw._serving import fallback
from tokendraw._serving.fallback import CallFailedError
from tokendraw._serving.routing import Member, Route, Serving
from tokendraw._serving.watch import Watch, fault
from tokendraw._torch.forked import reseed_if_due
from tokendraw._torch.graphs import is_capturing

_log = logging.getLogger("tokendraw")


class Drawing:
    """What a :class:`tokendraw.Sampler` keeps from batch to batch, whoever serves them."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self._counting = threading.Lock()
        self._rows: Counter[str] = Counter()
        self._told: set[tuple[str, str, bool]] = set()

    def counts(self) -> dict[str, int]:
        """How many rows each sampler has drawn, by name."""
        return dict(self._rows)

    def forget_since(self, counts: Mapping[str, int]) -> None:
        """Count from an earlier ``counts`` on."""
        with self._counting:
            self._rows = Counter(counts)

    def draw(self, serving: Serving, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a batch, or a batch of drafts if ``serving`` verifies, each row with the one who serves it.

        :raises CallFailedError: from what a sampler raised.
        """
        reseed_if_due()
        rows, vocab_size = logits.shape
        route = serving.route(metadata, rows, vocab_size, logits.device)
        output = self._draw(serving, route, logits, metadata)
        if route.lacking:
            self._tell(serving, route)
        self._count(serving, route, rows)
        return output

    def _draw(
        self, serving: Serving, route: Route, logits: Tensor, metadata: SamplingMetadata
    ) -> SamplerOutput:
        split = route.split
        if split is None:
            return self._call(route.member, serving, logits, metadata)
        assert serving.companion is not None
        # First the companion: should the other call overwrite the logits, these rows are not drawn from them.
        own = logits.index_select(0, split.rows)
        apart = self._call(serving.companion, serving, own, split.for_companion(metadata), is_copy=True)
        rest = self._call(route.member, serving, logits, split.for_chosen(metadata))
        return split.merged(rest, apart, metadata.facts.logprobs_width(logits.shape[1]))

    def _call(
        self,
        member: Member,
        serving: Serving,
        logits: Tensor,
        metadata: SamplingMetadata,
        *,
        is_copy: bool = False,
    ) -> SamplerOutput:
        """Call one sampler.

        :param is_copy: the logits are a copy of what the caller gave.
        :raises CallFailedError: from what it raised, or it returned what is no output.
        """
        given, kind, is_usual = logits, fallback.NO_KIND, True
        drafting = serving.resolution.operation == "verify"
        if serving.can_fall_back and not drafting:
            kind = fallback.kind_of(logits, metadata.facts)
            is_usual = kind in member.drawn_kinds and not member.failed_kinds
            if not is_usual and not is_copy:
                given = fallback.copied(logits, member, kind)
        had_copy = is_copy or given is not logits
        watch = None
        if self._debug and not is_capturing():
            watch = Watch(member.name, {"logits": given})
        try:
            output: SamplerOutput = (
                member.backend.sample(given, metadata, draft=True)
                if drafting
                else member.backend.sample(given, metadata)
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if watch is not None:
                watch.check_given(error)
            reason = fallback.raised(error, member)
            raise CallFailedError(member, error, reason, kind=kind, had_copy=had_copy) from error
        width = metadata.facts.logprobs_width(given.shape[1])
        wrong = wrong_output(output, given, width, ranks=serving.needs_ranks)
        if watch is not None:
            watch.check_given()
            watch.check_returned(wrong or wrong_tokens(output, given))
        if wrong is not None:
            found, reason = fault(member.name, f"to return {wrong}"), f"its call needs to return {wrong}"
            raise CallFailedError(member, found, reason, kind=kind, had_copy=had_copy)
        if not is_usual:
            member.note_success(kind)
        return output

    def _tell(self, serving: Serving, route: Route) -> None:
        """Log the first time that rows of a kind go to the companion, and that they take others with them."""
        assert serving.companion is not None
        chosen, companion = serving.chosen.name, serving.companion.name
        for kind in route.lacking:
            if (chosen, kind, bool(route.split)) in self._told:
                continue
            self._told.add((chosen, kind, bool(route.split)))
            whole = "" if route.split else f", and with them the whole batch, since {route.because}"
            _log.info("%r cannot serve %s: they go to %r%s", chosen, kind, companion, whole)

    def _count(self, serving: Serving, route: Route, rows: int) -> None:
        leaving = route.split.num_leaving if route.split else 0
        with self._counting:
            self._rows[route.member.name] += rows - leaving
            if leaving and serving.companion:
                self._rows[serving.companion.name] += leaving
