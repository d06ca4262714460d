"""Compares the tokens that llama.cpp's samplers keep with those that tokendraw keeps of the same logits.

    python benchmarks/llama_cpp_kept_sets.py --output benchmarks/results/cpu_llama_cpp_kept_sets.md
    python benchmarks/llama_cpp_kept_sets.py --library libllama.so

llama.cpp's functions are called by its C interface, in the library that llama-cpp-python brings, or in one given by
``--library``: samplers need neither a model nor a vocabulary, but for DRY, which is left out. tokendraw's side is the
sampler native.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tokendraw
from tokendraw import Need, SamplingMetadata, SamplingParams

ROWS, VOCAB_SIZE = 50, 8_000
LAST = "temperature_last"
Array = np.ndarray


class TokenData(ctypes.Structure):
    """``llama_token_data``."""

    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class TokenDataArray(ctypes.Structure):
    """``llama_token_data_array``."""

    _fields_ = (
        ("data", ctypes.POINTER(TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class LlamaStage(NamedTuple):
    """A sampler of llama.cpp: the end of its constructor's name, and its arguments."""

    name: str
    arguments: tuple[Any, ...]


class LlamaChain(NamedTuple):
    """Stages of llama.cpp beside the parameters of tokendraw."""

    label: str
    stages: tuple[LlamaStage, ...]
    params: dict[str, Any]


class LlamaLibrary:
    """llama.cpp's samplers."""

    def __init__(self, path: str | None, name: str) -> None:
        if path is None:
            import llama_cpp

            self.name = f"llama-cpp-python {llama_cpp.__version__}"
            self._library = llama_cpp.llama_cpp._lib
        else:
            self.name = name
            self._library = ctypes.CDLL(path, mode=os.RTLD_LAZY)

    def kept(self, logits: Array, stages: Sequence[LlamaStage]) -> set[int]:
        """Return the ids that a chain leaves of a row, with a logit above -inf."""
        data = np.zeros(len(logits), [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        data["id"], data["logit"] = np.arange(len(logits)), logits
        array = TokenDataArray(data.ctypes.data_as(ctypes.POINTER(TokenData)), len(logits), -1, False)
        for stage in stages:
            make = getattr(self._library, f"llama_sampler_init_{stage.name}")
            make.restype = ctypes.c_void_p
            sampler = ctypes.c_void_p(make(*stage.arguments))
            self._library.llama_sampler_apply(sampler, ctypes.byref(array))
            self._library.llama_sampler_free(sampler)
        left = np.ctypeslib.as_array(array.data, (array.size,))  # samplers move the pointer
        return set(left["id"][left["logit"] > -np.inf].tolist())


def _float(value: float) -> ctypes.c_float:
    return ctypes.c_float(value)


TOP_N_SIGMA = LlamaStage("top_n_sigma", (_float(1.5),))
TOP_K = LlamaStage("top_k", (ctypes.c_int32(40),))
TYPICAL = LlamaStage("typical", (_float(0.7), ctypes.c_size_t(1)))
TOP_P = LlamaStage("top_p", (_float(0.9), ctypes.c_size_t(1)))
MIN_P = LlamaStage("min_p", (_float(0.05), ctypes.c_size_t(1)))
XTC = LlamaStage("xtc", (_float(1.0), _float(0.1), ctypes.c_size_t(1), ctypes.c_uint32(1)))
TEMPERATURE = LlamaStage("temp", (_float(0.8),))


def chains() -> Iterator[LlamaChain]:
    """Yield each stage alone, temperature first, and llama.cpp's default order."""
    typical, xtc = {"typical_p": 0.7}, {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    yield LlamaChain("top_n_sigma 1.5", (TOP_N_SIGMA,), {"filters": {"top_n_sigma": 1.5}})
    yield LlamaChain("top_k 40", (TOP_K,), {"top_k": 40})
    yield LlamaChain("typ_p 0.7", (TYPICAL,), typical)
    yield LlamaChain("top_p 0.9", (TOP_P,), {"top_p": 0.9})
    yield LlamaChain("min_p 0.05", (MIN_P,), {"min_p": 0.05})
    yield LlamaChain("xtc 1, 0.1", (XTC,), xtc)
    first = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
    yield LlamaChain("temperature 0.8; top_k 40; top_p 0.9", (TEMPERATURE, TOP_K, TOP_P), first)
    last = {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8, "filter_order": LAST}
    yield LlamaChain(
        "top_k 40; top_p 0.9; min_p 0.05; temperature 0.8", (TOP_K, TOP_P, MIN_P, TEMPERATURE), last
    )
    every = {**last, **typical, **xtc}
    yield LlamaChain(
        "all but top_n_sigma, in the default order", (TOP_K, TYPICAL, TOP_P, MIN_P, XTC, TEMPERATURE), every
    )
    yield LlamaChain(
        "all, in the default order",
        (TOP_N_SIGMA, TOP_K, TYPICAL, TOP_P, MIN_P, XTC, TEMPERATURE),
        {**every, "filters": {"top_n_sigma": 1.5}},
    )


def rows(kind: str) -> Array:
    """Make rows [ROWS, V] float32: a bell of a language model's width, or logits in steps of a quarter, with ties."""
    x = np.random.default_rng(7).normal(0.0, 3.0, (ROWS, VOCAB_SIZE)).astype(np.float32)
    return np.round(4 * x) / 4 if kind == "ties" else x


def kept_here(logits: Array, params: dict[str, Any]) -> list[set[int]]:
    """Return the ids that native keeps of each row."""
    request = SamplingParams(logprobs=-1, seed=1, **params)
    need = Need(filter_orders=(request.filter_order,), logprobs_mode="processed_logits")
    sampler = tokendraw.load_sampler("native", device="cpu", need=need)
    found = []
    for row in torch.from_numpy(logits):
        best = sampler.sample(row[None], SamplingMetadata.from_params([request], positions=[0])).logprobs
        assert best is not None
        ids, values = best.token_ids[0, 1:], best.logprobs[0, 1:]
        found.append(set(ids[values > -math.inf].tolist()))
    return found


def compare(library: LlamaLibrary, chain: LlamaChain, kind: str) -> list[str]:
    """Return the cells of a chain: rows with equal sets, tokens kept, and the differences."""
    logits = rows(kind)
    there = [library.kept(row, chain.stages) for row in logits]
    mean = sum(map(len, there)) / len(there)
    here = kept_here(logits, chain.params)
    equal = sum(a == b for a, b in zip(there, here, strict=True))
    more_here = sum(len(b - a) for a, b in zip(there, here, strict=True))
    more_there = sum(len(a - b) for a, b in zip(there, here, strict=True))
    tied = sum(_is_tied(row, a, b) for row, a, b in zip(logits, there, here, strict=True) if a != b)
    counts = [str(number) for number in (more_here, more_there, tied)]
    return [chain.label, kind, f"{mean:.1f}", f"{equal} of {ROWS}", *counts]


def _is_tied(row: Array, there: set[int], here: set[int]) -> bool:
    """Return whether each difference of two kept sets is a tie with a token of their intersection."""
    both = {float(row[i]) for i in there & here}
    return all(float(row[i]) in both for i in there ^ here)


def edges(library: LlamaLibrary) -> list[list[str]]:
    """Return what stages keep of four equal logits, whose sums of 1/4 are exact in float32."""
    logits = np.zeros(4, np.float32)
    cases = (
        ("top_k 2", LlamaStage("top_k", (ctypes.c_int32(2),)), {"top_k": 2}),
        ("top_p 0.5", LlamaStage("top_p", (_float(0.5), ctypes.c_size_t(1))), {"top_p": 0.5}),
        ("typ_p 0.5", LlamaStage("typical", (_float(0.5), ctypes.c_size_t(1))), {"typical_p": 0.5}),
    )
    return [
        [label, str(len(library.kept(logits, [stage]))), str(len(kept_here(logits[None], params)[0]))]
        for label, stage, params in cases
    ]


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    every = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


def main(write: Callable[[str], None] = print) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", help="a shared library with llama.cpp's samplers")
    parser.add_argument("--name", default="llama.cpp's samplers from a library", help="what the library is")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    library = LlamaLibrary(arguments.library, arguments.name)
    lines = [compare(library, chain, kind) for kind in ("bell", "ties") for chain in chains()]
    command = "python benchmarks/llama_cpp_kept_sets.py"
    command += " --library LIBRARY" if arguments.library else ""
    command += f" --output {arguments.output}" if arguments.output else ""
    text = "\n\n".join(
        [
            f"`{command}`",
            f"{ROWS} rows of {VOCAB_SIZE:,} logits, normal with deviation 3 (bell), or rounded to quarters (ties); "
            f"{library.name}; tokendraw {tokendraw.__version__}, native; torch {torch.__version__}, "
            f"Python {platform.python_version()}",
            table(
                (
                    "stages",
                    "logits",
                    "tokens kept by llama.cpp, mean",
                    "rows with equal sets",
                    "tokens kept here alone",
                    "tokens kept there alone",
                    "rows that differ in ties alone",
                ),
                lines,
            ),
            "Four equal logits, whose sums of 1/4 are exact:",
            table(("stage", "tokens kept by llama.cpp", "tokens kept here"), edges(library)),
        ]
    )
    write(text)
    if arguments.output:
        arguments.output.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
