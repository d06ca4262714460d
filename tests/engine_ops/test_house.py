"""An operation outside the core: found, the kit against planted bugs, and the bench."""

import json
import time

import pytest
import torch

import tokendraw_engine_ops
from command_line import call
from tokendraw_bench.timing import WallTimer
from tokendraw_engine_ops.backends import TorchPacker, TorchPlanner
from tokendraw_testing import Status, Subject, run

OFFERED = tokendraw_engine_ops.ops_torch.tokendraw_describe().operations


def test_it_is_listed_with_its_distribution():
    listed = json.loads(call("list", "--operation", "pack_sm90_w4", "--json").stdout)
    assert [(o["name"], o["state"], o["distribution"]) for o in listed["operations"]] == [
        ("pack_sm90_w4", "available", "tokendraw-engine-ops"),
        ("plan_paged_kv", "available", "tokendraw-engine-ops"),
    ]
    assert listed["candidates"][0]["name"] == "ops-torch"


@pytest.mark.parametrize(("operation", "cells"), [("plan_paged_kv", 2), ("pack_sm90_w4", 14)])
def test_the_bench_times_it(operation, cells, monkeypatch):
    monkeypatch.setattr(WallTimer, "buffers", lambda timer, nbytes: 2)
    result = call("bench", "--op", operation, "--device", "cpu", "--repeats", 3, "--json")
    found = json.loads(result.stdout)["cells"]
    assert len(found) == cells, result.stderr
    assert all(cell["entries"]["ops-torch"]["us"] > 0 for cell in found)


# Planted bugs

BUFFER = torch.empty(1 << 20, dtype=torch.uint8)


def shared(tensor):
    """Copy into memory that all calls share, and give another thread its turn."""
    copied = BUFFER[: tensor.numel()].view(tensor.shape).copy_(tensor)
    time.sleep(0)
    return copied


class WritesBehindABuffer(TorchPlanner):
    def plan(self, *given, **named):
        out = super().plan(*given, **named)
        for buffer in (out.page_indptr, out.last_page_len):
            buffer.as_strided((1,), (1,), buffer.storage_offset() + len(buffer)).fill_(0)
        return out


class ClampsInPlace(TorchPlanner):
    def plan(self, seq_lens, *rest, **named):
        return super().plan(seq_lens.clamp_(max=3), *rest, **named)


class UnpacksV2Alone(TorchPacker):
    def unpack_weights(self, packed, *, format, layout):
        return super().unpack_weights(packed, format=format, layout="v2")


class SharesInputs(TorchPacker):
    def pack_scales(self, scales, *, layout):
        return super().pack_scales(shared(scales), layout=layout)


class SharesResults(TorchPacker):
    def pack_scales(self, scales, *, layout):
        return shared(super().pack_scales(scales, layout=layout))


BUGS = {
    WritesBehindABuffer: "plan_paged_kv values",
    ClampsInPlace: "plan_paged_kv inputs unmodified",
    UnpacksV2Alone: "pack_sm90_w4 values",
    SharesInputs: "pack_sm90_w4 threads",
    SharesResults: "pack_sm90_w4 inputs unmodified",
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_turns_its_line_red(bug):
    operation = BUGS[bug].partition(" ")[0]
    offered = {operation: OFFERED[operation]}
    subject = Subject("acme", capabilities=offered, device="cpu", build=lambda *given: bug())
    (found,) = run(subject, only=[BUGS[bug]]).lines
    assert (found.status, "a call raised" in found.detail) == (Status.FAILED, False), found


@pytest.mark.parametrize(
    ("plugin", "device", "operation"),
    [
        *(pytest.param("ops-torch", "cpu", operation, marks=pytest.mark.slow) for operation in OFFERED),
        *(pytest.param("ops-torch", "cuda", operation, marks=pytest.mark.gpu) for operation in OFFERED),
        pytest.param("ops-triton", "cuda", "plan_paged_kv", marks=pytest.mark.gpu),
    ],
)
def test_a_backend_passes_every_line(plugin, device, operation):
    subject = Subject.installed(plugin, device=device, operation=operation)
    assert run(subject, operation=operation).failed == ()
