"""Plans on a CUDA device: calls without waiting, and graphs with changing inputs."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tokendraw.paged_kv import PagedKVPlan
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.plan_paged_kv.subject import PlanSubject, fill_with_sentinels

properties = Properties("plan_paged_kv")

_REQUESTS, _COLUMNS, _PAGE_SIZE = 256, 64, 16
_REPLAYS = 5


def _batch(subject: PlanSubject, trial: Trial, label: str) -> tuple[Tensor, Tensor]:
    rng = trial.generator(label)
    lengths = subject.lengths(rng, _REQUESTS, _COLUMNS, _PAGE_SIZE)
    return subject.ints(lengths), subject.table(rng, _REQUESTS, _COLUMNS)


def _work(
    subject: PlanSubject, seq_lens: Tensor, table: Tensor, out: PagedKVPlan
) -> Callable[[], PagedKVPlan]:
    """Return a plan without the checks of the kit, because the checks wait."""
    planner, has_pages = subject.built(), out.page_indices is not None

    def work() -> PagedKVPlan:
        plan: PagedKVPlan = planner.plan(seq_lens, table, _PAGE_SIZE, has_pages, -1, out)
        return plan

    return work


@properties.advertised("plan sync-free", lambda c: c.sync_free, Refusal({"sync_free": True}), needs_cuda=True)
def sync_free(subject: PlanSubject, trial: Trial) -> str:
    """No plan waits for the device: by torch's check, and by a stopwatch behind a sleeping device."""
    seq_lens, table = _batch(subject, trial, "batch")
    for page_indices in (True, False):
        out = subject.buffers(_REQUESTS, _COLUMNS, page_indices=page_indices)
        require_no_wait(trial, f"page_indices={page_indices}: a call", _work(subject, seq_lens, table, out))
    return "2 kinds of calls"


@properties.advertised(
    "plan graph replay", lambda c: c.graph_safe, Refusal({"graph_safe": True}), needs_cuda=True
)
def graph_replay(subject: PlanSubject, trial: Trial) -> str:
    """A captured plan follows lengths and block tables that change in place."""
    seq_lens, table = _batch(subject, trial, "captured")
    out = subject.buffers(_REQUESTS, _COLUMNS)
    replay, _ = capture(_work(subject, seq_lens, table, out))
    for step in range(_REPLAYS):
        new_lens, new_table = _batch(subject, trial, f"replay {step}")
        seq_lens.copy_(new_lens)
        table.copy_(new_table)
        fill_with_sentinels(out)
        replay()
        call = subject.new_call("plan", seq_lens, table, _PAGE_SIZE)
        reason = call.wrong_values(out, subject.usual_need)
        trial.require(reason is None, f"replay {step + 1} needs {reason}")
    return f"{_REPLAYS} replays"
