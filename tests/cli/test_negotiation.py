"""``tokendraw list``, ``show`` and ``resolve``: output on pretended machines, settings and needs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from call_tables import pairs
from command_line import BOOM, FUTURE, OFF, be_on, call
from fake_candidates import ALL, FLASHINFER, H100, LAPTOP, NATIVE
from tokendraw import Need
from tokendraw.plugin import HostCapabilities, ProcessCapabilities, Release, VerifyCapabilities


def about(candidate, **changes):
    """Change the description of a plugin."""
    return replace(candidate, info=replace(candidate.info, **changes))


def with_table(installed, **in_files):
    """FlashInfer in a version, with facts about its versions and files."""
    releases = (
        Release("0", "returns no flag", refused=True),
        Release("0.6.7", "returns a flag"),
        Release("0", "draws one way", "sample"),
        Release("0.7.1", "draws two ways", "sample", change="nothing"),
    )
    upstream = replace(FLASHINFER.info.upstream, releases=releases, found=in_files)
    return replace(about(FLASHINFER, upstream=upstream), upstream_version=installed)


WORDS = {
    "ALL": ALL,
    "BOOM": BOOM,
    "FUTURE": FUTURE,
    "OFF": OFF,
    "NATIVE": NATIVE,
    "FLASHINFER": FLASHINFER,
    "H100": H100,
    "LAPTOP": LAPTOP,
    "about": about,
    "with_table": with_table,
    "RIVAL": replace(BOOM, name="native", distribution="rival-tokendraw"),
    "BOTH": about(
        NATIVE,
        operations={
            "paint": HostCapabilities(
                device_types=("cpu",)
            ),  # a plugin may offer what this core does not know
            "process_logits": ProcessCapabilities(device_types=("cpu",)),
            "verify": VerifyCapabilities(),
            **NATIVE.info.operations,
        },
    ),
    "NO_GREEDY": about(
        NATIVE, operations={"sample": replace(NATIVE.info.operations["sample"], greedy=False)}
    ),
}


@pytest.mark.parametrize(("command", "printed"), pairs(Path(__file__).with_name("printed.txt")))
def test_a_command_prints_on_a_machine_what_is_written(monkeypatch, command, printed):
    def said(line, host, *candidates, part="", **settings):
        """Return the lines on stdout, from one on, behind them those on stderr and the exit code."""
        be_on(monkeypatch, host, candidates)
        for name, value in settings.items():
            monkeypatch.setenv(f"TOKENDRAW_{name}", value)
        result = call(*line.split())
        shown = result.stdout[result.stdout.index(part) :].splitlines()
        lines = [*shown, *(f"stderr: {text}" for text in result.stderr.splitlines())]
        return "\n".join([*(text.rstrip() for text in lines if text), f"exit code {result.exit_code}"])

    assert eval(command, {**WORDS, "said": said}) == printed


@pytest.mark.parametrize("name", ["top-n-sigma", "top_n_sigma"])
def test_show_finds_a_filter_by_its_name_with_hyphens_too(name):
    assert call("show", name).stdout.startswith("top_n_sigma\n  summary ")


def test_every_need_can_be_given_by_its_name():
    given = {
        "logprobs_mode": "processed_logprobs",
        "filter_orders": ["joint", "top_k_first"],
        "gumbel_dtype": "fp64",
        "dtype": "bfloat16",
        "vocab_size": 99,
        "seeding": "counter",
        "tie_rule": "either",
        "max_logprobs": 8,
        "logprob_ranks": False,
        **dict.fromkeys(("valid_flag", "graph_safe", "sync_free", "threshold", "batch_invariant"), True),
    }
    assert given.keys() == asdict(Need()).keys()
    texts = {name: ",".join(v) if isinstance(v, list) else v for name, v in given.items()}
    words = [word for name, text in texts.items() for word in ("--need", f"{name}={text}")]
    assert json.loads(call("resolve", "--json", *words).stdout)["need"] == given
    options = ("--logprobs-mode", "processed_logprobs", "--gumbel-dtype", "fp64", "--need", "vocab_size=none")
    found = json.loads(call("resolve", "--json", *options).stdout)["need"]
    changed = {"logprobs_mode": "processed_logprobs", "gumbel_dtype": "fp64"}
    assert found == json.loads(json.dumps(asdict(Need()))) | changed
