"""Looks at the libraries that plugins call: installed and required versions, and what a tested version would change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tokendraw import operations
from tokendraw._exchange.capabilities import Need
from tokendraw._exchange.host import Host
from tokendraw._loading.resolve import decide
from tokendraw._messages.errors import TokendrawError
from tokendraw._resolution import upstream as _upstream
from tokendraw._resolution.candidate import Candidate, Choice, State
from tokendraw._resolution.decide import assess
from tokendraw.cli.describe import described


@dataclass(frozen=True)
class UpstreamState:
    """A library and the plugin that calls it."""

    name: str
    plugin: str
    installed: str | None
    """Installed version; None if it is not installed."""
    needed: str
    """PEP 440 specifier."""
    tested: tuple[str, ...]
    would_change: str
    """Says what the newest tested version would change here."""


def upstreams(candidates: Sequence[Candidate], host: Host, choice: Choice) -> list[UpstreamState]:
    """Look at every upstream of the candidates, in the order of their plugins' ranks."""
    return list(_states(candidates, host, choice))


def _states(candidates: Sequence[Candidate], host: Host, choice: Choice) -> Iterator[UpstreamState]:
    for candidate in candidates:
        info = described(candidate)
        if info is not None and info.upstream is not None:
            yield UpstreamState(
                info.upstream.distribution,
                candidate.name,
                candidate.upstream_version,
                info.upstream.versions,
                tuple(info.upstream.tested),
                _would_change(candidate, candidates, host, choice),
            )


def _would_change(candidate: Candidate, candidates: Sequence[Candidate], host: Host, choice: Choice) -> str:
    assert candidate.info is not None
    upstream, installed = candidate.info.upstream, candidate.upstream_version
    assert upstream is not None
    fits = installed is not None and _upstream.reason_against(upstream, installed, "sample") is None
    if not upstream.tested:
        return "unknown: no version was tested"
    if fits and _upstream.is_tested(upstream, str(installed)):
        return "nothing: this version is tested"
    version = upstream.tested[-1]
    # What a probe found was about the version that is here.
    probed = candidate.probe_reason if fits else None
    other = replace(candidate, upstream_version=version, probe_reason=probed)
    explicit = choice.sampler == candidate.name
    judged = assess(other, operations.get("sample"), host, Need(), explicit=explicit)
    if judged.state is not State.AVAILABLE:
        return f"nothing: {judged.reason or judged.state}"
    if fits:
        return f"with {version} nobody warns that {installed} is untested"
    try:
        chosen = decide([other if c is candidate else c for c in candidates], host, Need(), choice).chosen
    except TokendrawError:
        return f"with {version} {candidate.name} would be available"
    if chosen == candidate.name:
        return f"with {version} a program would get {candidate.name}"
    return f"with {version} {candidate.name} would be available, behind {chosen}"
