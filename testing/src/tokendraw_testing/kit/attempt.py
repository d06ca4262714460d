"""Runs a check that may raise, and describes the outcome in words."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from tokendraw.plugin import one_thread
from tokendraw.tools import format_error
from tokendraw_testing.kit.trial import NotRun, Violation

_KIT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Attempt:
    """The outcome of some looking."""

    failed: bool
    detail: str
    """Sizes that were checked; for a failure, needed against found."""
    traceback: str = ""
    """Traceback of a call that raised: the sampler's frames, the innermost last; "" if none did."""
    not_run: bool = False
    """Whether nothing could be tested; ``detail`` says why."""


def attempt(look: Callable[[], str]) -> Attempt:
    """Run a check and turn any exception into a failure, except an interrupt."""
    try:
        return Attempt(failed=False, detail=look())
    except NotRun as reason:
        return Attempt(failed=False, detail=str(reason), not_run=True)
    except Violation as violation:
        return Attempt(True, str(violation), _frames(violation.__cause__))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a sampler that calls sys.exit must not end the run
        return Attempt(True, f"a call raised {format_error(error)}", _frames(error))


@contextmanager
def fixed_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch and compute on one thread; restore the random state and thread count afterwards."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), one_thread():
        torch.manual_seed(seed)
        yield


def _frames(error: BaseException | None) -> str:
    """Format the frames below the kit's own, where the sampler raised; all of them if the kit itself did."""
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    kit = [i for i, frame in enumerate(frames) if _KIT in Path(frame.filename).parents]
    below = frames[kit[-1] + 1 :] if kit else frames
    return "".join(traceback.format_list(below or frames))
