"""Forked processes: children draw their own unseeded tokens, repeatably, unless they seed torch themselves."""

import json
import subprocess
import sys
from typing import Any

import pytest

import isolation

FORKS = """
import json, os, sys, threading
import torch
import tokendraw
from tokendraw import SamplingMetadata, SamplingParams

FLAT = torch.zeros(8, 50_000)
PLAIN = SamplingMetadata.from_params([SamplingParams()] * 8)
SEEDED = SamplingMetadata.from_params([SamplingParams(seed=3)] * 8, positions=range(8))
torch.set_num_threads(1)


def load():
    return tokendraw.load_sampler("native", device="cpu")


def draw(metadata=PLAIN):
    return sampler.sample(FLAT, metadata).token_ids.tolist()


def in_child(work):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        answer = json.load(answers)
    assert os.waitpid(pid, 0)[1] == 0
    return answer
"""


def result(code: str) -> Any:
    """Run the statements ``code`` in a new process, and return their variable ``result``."""
    ran = isolation.run_forked(f"{FORKS}\n{code}\nprint(json.dumps(result))")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def distinct(drawn: list[list[int]]) -> int:
    return len({tuple(tokens) for tokens in drawn})


@pytest.mark.slow
def test_torch_is_left_alone_before_the_first_sampler_then_processes_draw_their_own() -> None:
    before, drawn = result(
        """
torch.manual_seed(7)
before = [in_child(lambda: torch.rand(2).tolist()) for _ in range(2)]
sampler = load()
before.append(in_child(lambda: torch.rand(2).tolist()))
drawn = [in_child(draw) for _ in range(3)]
drawn += in_child(lambda: [draw(), in_child(draw), in_child(draw)])
result = [before, [*drawn, draw()]]
"""
    )
    assert before[0] == before[1] != before[2]
    assert distinct(drawn) == len(drawn) == 7


@pytest.mark.slow
def test_a_program_that_begins_with_manual_seed_repeats_with_all_its_children() -> None:
    code = """
sampler = load()
torch.manual_seed(7)
result = [draw(), in_child(draw), draw(), in_child(lambda: [draw(), draw()]), draw()]
"""
    first, again = result(code), result(code)
    other = result(code.replace("manual_seed(7)", "manual_seed(8)"))
    assert first == again
    assert first[1] != other[1]


@pytest.mark.slow
def test_forks_leave_the_parents_draws_seeded_rows_and_a_childs_own_seed_as_they_are() -> None:
    alone, beside, own, childs = result(
        """
sampler = load()
torch.manual_seed(7)
alone = [draw() for _ in range(3)]
torch.manual_seed(7)
result = [alone, [(in_child(draw), draw())[1] for _ in range(3)]]
torch.manual_seed(11)
result += [[draw(), draw(SEEDED)], in_child(lambda: [torch.manual_seed(11) and draw(), draw(SEEDED)])]
"""
    )
    assert alone == beside
    assert own == childs


@pytest.mark.slow
def test_beside_threads_the_seed_waits_for_a_draw_and_a_held_generator_is_harmless() -> None:
    """A child that draws needs the generator: only those that do not are forked while another thread may hold it."""
    drawn, seeded, alone, done = result(
        """
sampler = load()
torch.manual_seed(9)
alone = [draw(), draw()]
ended = threading.Event()
idle = threading.Thread(target=ended.wait)
idle.start()
drawn = [in_child(draw) for _ in range(3)] + [draw()]
seeded = [in_child(lambda: torch.manual_seed(9) and [draw(), draw()]) for _ in range(2)]

def busy():
    block = torch.empty(300_000)
    while not ended.is_set():
        block.normal_()

thread = threading.Thread(target=busy)
thread.start()
done = [in_child(lambda: 1) for _ in range(50)]
ended.set()
thread.join()
idle.join()
result = [drawn, seeded, alone, done]
"""
    )
    assert distinct(drawn) == 4
    assert seeded == [alone, alone]  # the seed is left out where the child seeds itself
    assert done == [1] * 50


@pytest.mark.gpu
def test_children_that_initialise_cuda_draw_different_tokens_there() -> None:
    code = FORKS.replace("FLAT = torch.zeros(8, 50_000)", "") + (
        """
sampler = load()
torch.manual_seed(7)

def draw_there():
    flat = torch.zeros(8, 50_000, device="cuda")
    there = tokendraw.load_sampler("native", device="cuda")
    return there.sample(flat, SamplingMetadata()).token_ids.tolist()

print(json.dumps([in_child(draw_there) for _ in range(2)]))
"""
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert distinct(json.loads(ran.stdout)) == 2
