"""The FlashInfer plugin before a build: the capabilities of the installed version, and why it cannot run."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import flashinfer_stand_in as stand_in
from fake_candidates import A100, H100, RTX5090
from flashinfer_stand_in import add_jit_cache, add_tools, bare_machine, write
from pages import install, run_with
from tokendraw import Need
from tokendraw_flashinfer import capabilities, kernels, plugin
from tokendraw_flashinfer.signatures import EntryPoints

OLD, NEW = stand_in.SOURCES
ROOT = Path(__file__).parents[2]
SM121 = replace(RTX5090, compute_capability=(12, 1), name="GB10")
NEEDED = "needs FlashInfer's sampling module prebuilt, or nvcc, ninja and a C++ compiler to build it, found "
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


def offered():
    return capabilities(EntryPoints.installed())


@pytest.mark.parametrize("version", [OLD, NEW])
def test_both_tested_versions_offer_everything(dists, version):
    install_flashinfer(dists, version)
    found = offered()
    assert [name for name, _ in found.filters] == ["top_k", "top_p", "min_p"]
    assert found.filter_orders == ("top_k_first", "joint")
    assert (found.seeding, found.greedy, found.logprobs_modes, found.tie_rule) == (
        "launch",
        False,
        (),
        "value",
    )


def test_a_missing_entry_point_is_replaced_or_not_offered_whatever_the_version_number(dists):
    source = stand_in.SOURCES[NEW]["flashinfer.sampling"]
    less = source.replace("def min_p_sampling_from_probs", "def other").replace(
        "filter_apply_order=", "order="
    )
    install_flashinfer(dists, modules={"flashinfer": "", "flashinfer.sampling": less})
    found = offered()
    assert [name for name, _ in found.filters] == ["top_k", "top_p", "min_p"]  # min-p by probabilities
    assert found.filter_orders == ("top_k_first", "joint")  # joint by a restated top-p
    least = less.replace("def top_k_renorm_probs", "def another").replace(
        "def top_k_mask_logits", "def third"
    )
    install_flashinfer(dists, "0.7.3", modules={"flashinfer": "", "flashinfer.sampling": least})
    assert offered().filter_orders == ()
    assert plugin.tokendraw_describe().operations["sample"] == offered()


def test_parameters_count_not_names_alone(dists):
    source = stand_in.SOURCES[NEW]["flashinfer.sampling"].replace("seed=None, ", "")
    install_flashinfer(dists, modules={"flashinfer": "", "flashinfer.sampling": source})
    assert offered().filters == ()
    assert probe() == (
        "needs flashinfer.sampling.sampling_from_probs(seed), found no such thing; reinstall flashinfer-python"
    )


def test_an_upstream_without_its_source_is_unavailable_for_this_reason(dists):
    folder = install_flashinfer(dists, modules={"other": ""})
    assert probe() == (
        f"needs flashinfer.sampling.softmax, found no source in {str(folder / 'flashinfer')!r}; "
        "reinstall flashinfer-python"
    )


def test_an_unparsable_source_counts_as_missing(dists):
    install_flashinfer(dists, modules={"flashinfer": "", "flashinfer.sampling": "def softmax(:"})
    assert EntryPoints.installed().parameters == {}


def test_without_flashinfer_the_description_is_whole_and_names_no_kernels():
    info = plugin.tokendraw_describe()
    assert (info.name, info.api_version, info.kernels) == ("flashinfer", 1, "")
    assert info.operations["sample"].compute_capability == ((7, 5), (12, 1))
    assert (info.upstream.versions, info.upstream.tested) == (">=0.6.7,<0.8", (OLD, NEW))


def test_looking_imports_nothing_of_it(dists):
    install_flashinfer(dists)
    before = set(sys.modules)
    plugin.tokendraw_describe()
    assert not {name for name in set(sys.modules) - before if name.startswith("flashinfer")}


OPENED = []
"""Files that were opened, while a test listens."""
LISTENING = []


@sys.addaudithook
def listen(event, arguments):
    if LISTENING and event in ("open", "subprocess.Popen"):
        OPENED.append(str(arguments[0]))


def test_probing_reads_nothing_of_other_distributions_and_looks_for_none_of_the_files_of_a_large_one(
    dists, monkeypatch
):
    install_flashinfer(dists)
    add_tools(dists, "ninja", "c++", "nvcc")
    add_jit_cache(dists, NEW)
    others = dists.folder / "others"
    for number in range(200):
        write(others / f"other_{number}-1.0.dist-info/METADATA", f"Name: other-{number}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(others)
    (record,) = dists.folder.glob("flashinfer-jit-cache-*/*.dist-info/RECORD")
    module = record.read_text(encoding="utf-8")
    record.write_text("".join(f"jit_cache/m{i}/m{i}.so,,\n" for i in range(5000)) + module, encoding="utf-8")
    looked_at, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: looked_at.append(args) or stat(*args, **kwargs))
    OPENED.clear()
    LISTENING.append(True)
    try:
        assert probe() is None
        assert kernels.find().source == f"prebuilt, in flashinfer-jit-cache {NEW}"
    finally:
        LISTENING.clear()
    assert not [path for path in OPENED if "other_" in path]
    assert not [path for path in OPENED if path.endswith(("nvcc", "ninja", "c++"))]  # found, never run
    assert len(OPENED) < 30
    assert len(looked_at) < 100


def test_a_listed_but_deleted_module_counts_as_missing(dists):
    install_flashinfer(dists)
    folder = add_jit_cache(dists, NEW)
    (folder / "flashinfer_jit_cache/jit_cache/sampling/sampling.so").unlink()
    assert probe() == f"{NEEDED}no nvcc and no C++ compiler and no ninja{ADVICE}"


def test_no_module_and_no_compiler_is_a_reason(dists):
    install_flashinfer(dists)
    assert probe() == f"{NEEDED}no nvcc and no C++ compiler and no ninja{ADVICE}"
    add_tools(dists, "ninja", "c++")
    assert probe() == f"{NEEDED}no nvcc{ADVICE}"
    assert plugin.tokendraw_describe().kernels == ""


def test_a_module_in_the_package_is_enough(dists):
    folder = install_flashinfer(dists)
    write(folder / "flashinfer/data/aot/sampling/sampling.so")
    assert probe() is None
    assert plugin.tokendraw_describe().kernels == "prebuilt, in flashinfer-python 0.7.2.post1"


@pytest.mark.parametrize("name", ["flashinfer-jit-cache", "flashinfer-jit-cache-cu129-sm90"])
@pytest.mark.parametrize("version", [NEW, f"{NEW}+cu129"])
def test_a_jit_cache_of_its_version_is_enough(dists, name, version):
    install_flashinfer(dists)
    add_jit_cache(dists, version, name)
    assert probe() is None
    assert kernels.find().source == f"prebuilt, in {name} {version}"


def test_a_jit_cache_of_another_version_is_not(dists, monkeypatch):
    install_flashinfer(dists)
    add_jit_cache(dists, "0.7.1+cu129")
    assert probe() == (
        f"{NEEDED}no nvcc and no C++ compiler and no ninja, and flashinfer-jit-cache 0.7.1+cu129 of another version"
        f"{ADVICE}"
    )
    monkeypatch.setenv("FLASHINFER_DISABLE_VERSION_CHECK", "1")
    assert probe() is None


def test_a_module_compiled_earlier_needs_ninja_and_a_toolkit_to_be_loaded(dists):
    install_flashinfer(dists)
    cached = dists.folder / "workspace/.cache/flashinfer" / NEW / "90a/cached_ops/sampling/sampling.so"
    write(cached)
    assert probe() == f"{NEEDED}no nvcc and no C++ compiler and no ninja{ADVICE}"
    add_tools(dists, "ninja")
    (dists.folder / "cuda").mkdir()
    assert probe() is None
    assert kernels.find().source == f"compiled earlier, in {cached}"
    assert probe(A100) == f"{NEEDED}no nvcc and no C++ compiler{ADVICE}"


def test_with_compilers_the_module_is_built_unless_the_jit_is_disabled(dists, monkeypatch):
    install_flashinfer(dists)
    add_tools(dists, "ninja", "c++", "nvcc")
    assert probe() is None
    assert (
        kernels.find().source == f"compiled here when the sampler is built, by {dists.folder}/cuda/bin/nvcc"
    )
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    assert probe() == f"{NEEDED}FLASHINFER_DISABLE_JIT set{ADVICE}"


def old_cuda(needed, found, capability):
    return (
        f"needs CUDA {needed} or later for compute capability {capability}, found {found} (nvcc), which FlashInfer "
        "reports as a device below sm75; install a newer CUDA toolkit"
    )


NEW_CONTEXT = 'if is_cuda_version_at_least("12.8"):\n    pass\n'


@pytest.mark.parametrize(
    ("context", "host", "expected"),
    [
        ("", RTX5090, old_cuda("12.9", "12.8", "12.0")),
        ("", SM121, old_cuda("12.9", "12.8", "12.1")),
        (NEW_CONTEXT, RTX5090, None),
        (NEW_CONTEXT, SM121, old_cuda("12.9", "12.8", "12.1")),
        ("", H100, None),
    ],
)
def test_compute_capability_12_with_an_old_toolkit_gets_the_real_reason(dists, context, host, expected):
    folder = install_flashinfer(dists)
    write(folder / "flashinfer/compilation_context.py", context)
    write(folder / "flashinfer/data/aot/sampling/sampling.so")
    add_tools(dists, "nvcc")
    assert probe(host) == expected


def test_targets_named_by_the_user_are_taken_as_they_are(dists, monkeypatch):
    folder = install_flashinfer(dists)
    write(folder / "flashinfer/data/aot/sampling/sampling.so")
    add_tools(dists, "nvcc")
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "12.0f")
    assert probe(RTX5090) is None


@pytest.mark.slow
def test_without_flashinfer_the_plugin_is_listed_and_everything_else_works(tmp_path):
    for project in ("core", "plugins/native", "plugins/flashinfer", "plugins/aiter"):
        install(ROOT / project, tmp_path)
    listed = run_with(tmp_path, "tokendraw", "list")
    assert (listed.stderr, listed.returncode) == ("", 0)
    states, offered, *_ = (
        {line.split()[0]: line for line in table.splitlines()} for table in listed.stdout.split("\n\n")
    )
    rows = {name: " ".join(line.split()[1:]) for name, line in states.items()}
    assert offered["flashinfer"].endswith("  sample, verify")
    device = "cuda" if "needs a rocm device, found cuda" in rows["aiter"] else "cpu"
    if device == "cpu":
        assert rows["flashinfer"] == "unavailable 40 0.1.0 needs a cuda device, found cpu"
    assert rows["aiter"] == f"unavailable 30 0.1.0 needs a rocm device, found {device}"
    assert rows["native"].startswith("available 0 0.1.0 ")
    asked = run_with(tmp_path, "tokendraw", "resolve", "--sampler", "flashinfer")
    assert asked.returncode == 1
    assert "'flashinfer'" in asked.stderr
    shown = run_with(tmp_path, "tokendraw", "show", "aiter")
    assert "not run on hardware yet" in shown.stdout
