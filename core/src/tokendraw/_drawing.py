"""A batch that is drawn, each row by the one who serves it: the calls, watched, counted and told of."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from tokendraw import _fallback
from tokendraw._call_checks import Watch
from tokendraw._cuda_graphs import is_capturing
from tokendraw._form import wrong_tokens
from tokendraw._metadata import SamplingMetadata
from tokendraw._output import SamplerOutput
from tokendraw._serving import Member, Route, Serving

_log = logging.getLogger("tokendraw")


class CallFailedError(Exception):
    """A sampler's call raised what is the cause of this."""

    def __init__(self, member: Member, *, is_pristine: bool) -> None:
        self.member = member
        self.is_pristine = is_pristine
        """The caller's logits are known to be as they were before the call."""


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

    def draw(
        self, serving: Serving, logits: Tensor, metadata: SamplingMetadata, *, inplace: bool = False
    ) -> SamplerOutput:
        """Draw a batch, or a batch of drafts if ``serving`` verifies, each row with the one who serves it.

        :raises CallFailedError: from what a sampler raised.
        """
        rows, vocab_size = logits.shape
        route = serving.route(metadata, rows, vocab_size, logits.device)
        output = self._draw(serving, route, logits, metadata, inplace=inplace)
        if route.lacking:
            self._tell(serving, route)
        self._count(serving, route, rows)
        return output

    def _draw(
        self, serving: Serving, route: Route, logits: Tensor, metadata: SamplingMetadata, *, inplace: bool
    ) -> SamplerOutput:
        split = route.split
        if split is None:
            return self._call(route.member, serving, logits, metadata, inplace=inplace)
        assert serving.companion is not None
        # First the companion, from a copy of its rows: the other call may overwrite them.
        own = logits.index_select(0, split.rows)
        apart = self._call(
            serving.companion, serving, own, split.for_companion(metadata), inplace=True, is_spare=True
        )
        rest = self._call(route.member, serving, logits, split.for_chosen(metadata), inplace=inplace)
        return split.merged(rest, apart, metadata.facts.max_logprobs, logits.shape[1])

    def _call(
        self,
        member: Member,
        serving: Serving,
        logits: Tensor,
        metadata: SamplingMetadata,
        *,
        inplace: bool,
        is_spare: bool = False,
    ) -> SamplerOutput:
        """Call one sampler.

        :param inplace: drafts never are.
        :param is_spare: the logits are a copy of what the caller gave.
        :raises CallFailedError: from what it raised.
        """
        given, drafting = logits, serving.resolution.operation == "verify"
        if not member.has_drawn and serving.can_fall_back and not inplace and not drafting:
            given = _fallback.spare(logits)
        watch = None
        if self._debug and not is_capturing():
            kept = {} if inplace and not drafting else {"logits": given}
            watch = Watch(member.name, kept, unless="" if drafting else "inplace=True")
        version = None if given.is_inference() else given._version
        try:
            output: SamplerOutput = (
                member.backend.draft(given, metadata)
                if drafting
                else member.backend.sample(given, metadata, inplace=inplace)
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if watch is not None:
                watch.check_given(error)
            untouched = given is not logits or (version is not None and given._version == version)
            raise CallFailedError(member, is_pristine=is_spare or (untouched and not inplace)) from error
        if watch is not None:
            watch.check_given()
            watch.check_returned(wrong_tokens(output, given))
        member.has_drawn = True
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
