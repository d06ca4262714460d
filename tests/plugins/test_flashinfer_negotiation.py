"""The FlashInfer plugin before a build: the capabilities of the installed version, and why it cannot run."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import flashinfer_stand_in as stand_in
from call_tables import pairs
from fake_candidates import A100, H100, RTX5090  # noqa: F401 (for the table)
from flashinfer_stand_in import add_jit_cache, add_tools, bare_machine, write
from tokendraw import Need
from tokendraw_flashinfer import kernels, plugin

OLD, NEW = stand_in.SOURCES
SM121 = replace(RTX5090, compute_capability=(12, 1), name="GB10")
NEW_CONTEXT = 'if is_cuda_version_at_least("12.8"):\n    pass\n'
ADVICE = (
    "; run `pip install flashinfer-jit-cache==0.7.2.post1` from FlashInfer's index, or install a CUDA toolkit"
)


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with bare_machine(tmp_path, monkeypatch) as dists:
        yield dists


def install_flashinfer(dists, version=NEW, modules=None):
    return dists.add("flashinfer-python", version, modules=modules or stand_in.SOURCES[version])


def probe(host=H100, need=None):
    return plugin.tokendraw_probe(operation="sample", host=host, need=need or Need())


SAMPLING = stand_in.SOURCES[NEW]["flashinfer.sampling"]
NO_SEED = SAMPLING.replace("seed=None, ", "")
LESS = SAMPLING.replace("def min_p_sampling_from_probs", "def other").replace("filter_apply_order=", "order=")
LEAST = LESS.replace("def top_k_renorm_probs", "def another").replace("def top_k_mask_logits", "def third")
EVERY_FILTER, BOTH_ORDERS = ["top_k", "top_p", "min_p"], ("top_k_first", "joint")
OFFERS = {
    OLD: (stand_in.SOURCES[OLD]["flashinfer.sampling"], EVERY_FILTER, BOTH_ORDERS),
    NEW: (SAMPLING, EVERY_FILTER, BOTH_ORDERS),
    "min-p by probabilities, joint by a restated top-p": (LESS, EVERY_FILTER, BOTH_ORDERS),
    "no way for both filters": (LEAST, EVERY_FILTER, ()),
    "parameters count, not names alone": (NO_SEED, [], ()),
}
"""Sources of any version number, and the filters and orders that the plugin offers with them."""


@pytest.mark.parametrize("name", OFFERS)
def test_the_entry_points_that_are_there_decide_what_is_offered(dists, name):
    source, filters, orders = OFFERS[name]
    install_flashinfer(dists, modules={"flashinfer": "", "flashinfer.sampling": source})
    found = plugin.tokendraw_describe().operations["sample"]
    assert ([filter_name for filter_name, _ in found.filters], found.filter_orders) == (filters, orders)
    assert (found.seeding, found.greedy, found.logprobs_modes, found.tie_rule) == (
        "launch",
        False,
        (),
        "value",
    )


ONE_FILTER = "draws by rejection"
FUSED = "draws by rejection, or fused where every row has a k up to 1024"


@pytest.mark.parametrize(("files", "words"), [(OLD, ONE_FILTER), (NEW, FUSED)])
def test_the_files_say_how_it_draws_whatever_the_version(dists, files, words):
    install_flashinfer(dists, "0.7.0", stand_in.SOURCES[files])
    assert plugin.tokendraw_describe().upstream.found["sample"] == words


def test_without_flashinfer_the_description_is_whole_and_names_no_kernels():
    info = plugin.tokendraw_describe()
    assert (info.name, info.api_version, info.kernels) == ("flashinfer", 1, "")
    assert info.operations["sample"].compute_capability == ((7, 5), (12, 1))
    assert (info.upstream.versions, info.upstream.tested) == (">=0.6.7,<0.8", (OLD, NEW))


MODULE = "sampling/sampling.so"
CACHED = f"workspace/.cache/flashinfer/{NEW}/90a/cached_ops/{MODULE}"


def machine(dists, monkeypatch):
    """Make a function of a machine: the reason against the plugin, or the place of its kernels."""

    def told(
        *tools,
        modules=None,
        context="",
        cached=False,
        package=False,
        toolkit=False,
        jit_cache=(),
        deleted=False,
        host=H100,
        **environ,
    ):
        folder = install_flashinfer(dists, modules=modules)
        write(folder / "flashinfer/compilation_context.py", context)
        add_tools(dists, *tools)
        if package:
            write(folder / "flashinfer/data/aot" / MODULE)
        if cached:
            write(dists.folder / CACHED)
        if toolkit:
            (dists.folder / "cuda").mkdir()
        if jit_cache:
            cache = add_jit_cache(dists, *jit_cache)
            if deleted:
                (cache / "flashinfer_jit_cache/jit_cache" / MODULE).unlink()
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        said = probe(host) or kernels.find().source
        return said.replace(ADVICE, "ADVICE").replace(str(dists.folder), "FOLDER")

    return told


@pytest.mark.parametrize(("call", "said"), pairs(Path(__file__).with_name("kernels_of_flashinfer.txt")))
def test_kernels_are_prebuilt_or_can_be_built_or_the_reason_says_what_is_missing(
    dists, monkeypatch, call, said
):
    before = set(sys.modules)
    assert eval(call, {"told": machine(dists, monkeypatch), **globals()}) == said
    assert not [name for name in set(sys.modules) - before if name.startswith("flashinfer")]
