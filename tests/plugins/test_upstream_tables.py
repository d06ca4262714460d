"""The release tables of our plugins: the decision on a version by its metadata, and its whole reason."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import flashinfer_stand_in
from fake_candidates import H100, LAPTOP, MI300X
from fake_dists import fake_dists
from tokendraw import SamplerUnavailableError, operations
from tokendraw.backends.resolution.upstream import is_tested, release_of
from tokendraw.providers import decide, gather
from tokendraw.resolution import Choice, State
from tokendraw_aiter.upstream import UPSTREAM as AITER
from tokendraw_engine_ops import FLASHINFER as PACKING
from tokendraw_flashinfer.upstream import UPSTREAM as FLASHINFER
from tokendraw_native.upstream import UPSTREAM as NATIVE
from tokendraw_triton_gumbel.upstream import UPSTREAM as TRITON_GUMBEL

ROOT = Path(__file__).parents[2]
TABLES = {
    "native": NATIVE,
    "triton-gumbel": TRITON_GUMBEL,
    "flashinfer": FLASHINFER,
    "ops-flashinfer": PACKING,
    "aiter": AITER,
}
HOSTS = {"native": LAPTOP, "triton-gumbel": H100, "flashinfer": H100, "ops-flashinfer": H100, "aiter": MI300X}

ONE_FILTER = "draws by rejection"
FUSED = "draws by rejection, or fused where every row has a k up to 1024"
PACK = "pack_sm90_w4"
V1, V2 = "packs layout v1", "packs layout v2"
NO_MASS = "reads out of bounds for rows without mass (pull request 3658), so it gets none"
ROCM_10 = "has no sampling kernels on ROCm 10 (pull request 4754)"


def used(plugin, version, operation, says=""):
    priority = {"native": 0, "triton-gumbel": 50, "flashinfer": 40, "ops-flashinfer": 40, "aiter": 30}[plugin]
    words = f"; {TABLES[plugin].distribution} {version} {says}" if says else ""
    return plugin, operation, version, f"best available, priority {priority}{words}"


def refused(plugin, version, operation, says=""):
    upstream = TABLES[plugin]
    words = f", which {says}" if says else ""
    return (
        plugin,
        operation,
        version,
        f"needs {upstream.distribution} {upstream.versions}, found {version}{words}",
    )


def refused_for(plugin, version, operation, says):
    """Refused for a single operation, with the first supported release."""
    upstream = TABLES[plugin]
    rows = [row for row in upstream.releases if row.operation == operation and not row.refused]
    return (
        plugin,
        operation,
        version,
        f"needs {upstream.distribution} >={rows[0].since}, found {version}, which {says}",
    )


def every(decision, plugin, versions, says="", operation="sample"):
    return [decision(plugin, version, operation, says) for version in versions.split()]


DECISIONS = [
    *every(refused, "native", "1.13.1 2.5.1 2.5.1+cu121", "was never run"),
    *every(refused, "native", "2.6.0rc1 2.6.0.dev20241112+cu124"),
    *every(used, "native", "2.6 2.6.0+cu124 2.11.0 2.13.0+cpu 2.14.0.dev20261101+cpu 2.14.0rc3"),
    *every(
        refused, "triton-gumbel", "2.1.0 3.3.1 3.3.1.post1", "takes no NamedTuple as an argument of a kernel"
    ),
    *every(refused, "triton-gumbel", "3.4.0rc1"),
    *every(used, "triton-gumbel", "3.4.0 3.4.0+git8c5c1c2 3.6.0 3.7.1 4.0.0.dev1"),
    *every(used, "triton-gumbel", "3.4.0 3.7.1", operation="verify"),
    *every(refused, "flashinfer", "0.5.3 0.6.6 0.6.6.post1 0.6.6+cu128", "returns no valid flag"),
    *every(refused, "flashinfer", "0.6.7rc1 0.6.7.dev20260301 0.8.0rc1 0.8.0.dev1 0.8 1.0"),
    *every(used, "flashinfer", "0.6.7 0.6.7.post3 0.6.18.post1 0.7.0.post1+cu130", ONE_FILTER),
    *every(used, "flashinfer", "0.7.1rc1 0.7.1.dev20260901 0.7.1 0.7.2.post1+cu130 0.7.99", FUSED),
    *every(refused, "flashinfer", "0.6.6", "returns no valid flag", "verify"),
    *every(used, "flashinfer", "0.6.7 0.7.2.post1", operation="verify"),
    *every(refused_for, "ops-flashinfer", "0.6.7 0.6.9 0.6.9.post1+cu128", "packs no weights for SM90", PACK),
    *every(
        used, "ops-flashinfer", "0.6.10.dev20260401 0.6.10 0.6.10.post1 0.6.11 0.6.11.post2 0.6.12", V1, PACK
    ),
    *every(used, "ops-flashinfer", "0.6.13 0.6.14 0.6.15 0.6.15.post1+cu130", V1, PACK),
    *every(used, "ops-flashinfer", "0.6.16rc1 0.6.16 0.6.16.post1 0.6.16.post2 0.6.16.post2+cu129", V2, PACK),
    *every(
        used, "ops-flashinfer", "0.6.16.post3.dev1 0.6.16.post3 0.6.16.post4 0.6.17 0.6.17+cu130", V1, PACK
    ),
    *every(
        used,
        "ops-flashinfer",
        "0.6.18rc1 0.6.18 0.6.18.post1 0.7.0 0.7.0.post1 0.7.1 0.7.2 0.7.2.post1",
        V2,
        PACK,
    ),
    *every(refused, "aiter", "0.1.5.post4 0.1.10.post3", "draws top-p wrongly (pull request 2035)"),
    *every(
        refused,
        "aiter",
        "0.1.11rc1 0.1.11 0.1.12.post2 0.1.12+rocm7",
        "has operators that were never looked at",
    ),
    *every(refused, "aiter", "0.1.13.dev0 0.1.13rc5"),
    *every(used, "aiter", "0.1.13 0.1.13.post1 0.1.16.post6+rocm7.1", NO_MASS),
    *every(used, "aiter", "0.1.17rc0 0.1.17 0.1.19.post2", "reads within bounds"),
    *every(used, "aiter", "0.1.20.dev3 0.1.20", ROCM_10),
    *every(
        used,
        "aiter",
        "0.1.20.post1 0.1.20.post1+rocm7 0.2",
        "has sampling kernels on ROCm 10 too (pull request 4843)",
    ),
]
"""Plugin, operation, version, and the words of the decision."""


@pytest.fixture
def dists(tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as found:
        found.add_engine_ops()
        for name in [name for name in TABLES if name != "ops-flashinfer"]:
            package = f"tokendraw_{name.replace('-', '_')}"
            found.add(f"tokendraw-{name}", "0.1.0", plugins={name: f"{package}:plugin"})
        yield found


def installed(dists, name, version):
    """The plugin with nothing installed but the metadata of a version; the rest of its probe does not matter."""
    dists.add(TABLES[name].distribution, version)
    found = gather(HOSTS[name], Choice()).plugins
    (candidate,) = [c for c in found if c.name == name]
    assert (candidate.state, candidate.upstream_version) == (State.LOADED, version)
    return candidate


@pytest.mark.parametrize(("plugin", "operation", "version", "words"), DECISIONS)
def test_a_version_is_decided_by_its_row_of_the_table(dists, plugin, operation, version, words):
    candidate = installed(dists, plugin, version)
    need = operations.find_operation(operation).need()
    if words.startswith("best available"):
        made = decide([candidate], HOSTS[plugin], need, Choice(), operation=operation)
        assert [(d.accepted, d.reason) for d in made.decisions] == [(True, words)]
        is_silent = plugin == "native" or is_tested(TABLES[plugin], version)
        assert bool(made.untested) is not is_silent
        return
    asked = Choice(sampler=plugin, source="TOKENDRAW_SAMPLER")
    with pytest.raises(SamplerUnavailableError) as refusal:
        decide([candidate], HOSTS[plugin], need, asked, operation=operation)
    nothing_else = (
        "Nothing else is available here."
        if plugin in ("native", "ops-flashinfer")
        else "Nothing else is available here; run `pip install ./plugins/native` in tokendraw's checkout."
    )
    assert str(refusal.value) == (
        f"'{plugin}', asked for by TOKENDRAW_SAMPLER, cannot serve the operation '{operation}' on "
        f"{HOSTS[plugin]}: {words}. {nothing_else} Unset TOKENDRAW_SAMPLER to let tokendraw choose."
    )


@pytest.mark.parametrize("plugin", TABLES)
def test_every_row_is_met_by_versions_above_the_first_of_them_included(plugin):
    upstream = TABLES[plugin]
    met = [
        release_of(upstream, version, about)
        for name, operation, version, _ in DECISIONS
        for about in (None, operation)
        if name == plugin
    ]
    assert [row for row in upstream.releases if row not in met] == []
    decided = {version for name, _, version, _ in DECISIONS if name == plugin}
    begins = [row.since for row in upstream.releases if row.since != "0"]
    assert [since for since in begins if since not in decided and f"{since}.0" not in decided] == []


@pytest.mark.parametrize("plugin", ["native", "triton-gumbel"])
def test_continuous_integration_runs_the_first_and_the_last_minor_version_of_a_tested_range(plugin):
    (tested,) = TABLES[plugin].tested
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    ran = re.findall(rf"\b{TABLES[plugin].distribution}==(\d+\.\d+)\.\*", workflow)
    first, last = (version.split(".") for version in re.findall(r"[\d.]+", tested))
    assert {".".join(first), f"{last[0]}.{int(last[1]) - 1}"} <= set(ran)
    assert all(is_tested(TABLES[plugin], f"{version}.1") for version in ran)


@pytest.mark.parametrize(
    ("version", "files", "words"),
    [
        ("0.6.11.post2", "0.6.11.post2", f"0.6.11.post2 {ONE_FILTER}"),
        ("0.7.2.post1", "0.7.2.post1", f"0.7.2.post1 {FUSED}"),
        ("0.7.2.post1+cu130", "0.7.2.post1", f"0.7.2.post1+cu130 {FUSED}"),
        ("0.6.11.post2", "0.7.2.post1", f"0.6.11.post2 {FUSED} by its files"),
        ("0.7.2.post1", "0.6.11.post2", f"0.7.2.post1 {ONE_FILTER} by its files"),
    ],
)
def test_the_files_of_flashinfer_decide_and_not_its_number(dists, version, files, words):
    dists.add("flashinfer-python", version, modules=flashinfer_stand_in.SOURCES[files])
    (candidate,) = [c for c in gather(H100, Choice()).plugins if c.name == "flashinfer"]
    made = decide([candidate], H100, operations.find_operation("sample").need(), Choice())
    assert made.decisions[0].reason == f"best available, priority 40; flashinfer-python {words}"


@pytest.mark.parametrize(
    ("plugin", "required"),
    [("native", True), ("triton-gumbel", True), ("flashinfer", True), ("aiter", False)],
)
def test_the_range_is_the_requirement_of_the_distribution(plugin, required):
    folder = ROOT / "plugins" / plugin.replace("-", "_")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [*project["dependencies"], *chain(*project.get("optional-dependencies", {}).values())]
    upstream = TABLES[plugin]
    asked = [
        str(requirement.specifier)
        for requirement in map(Requirement, every)
        if requirement.name == upstream.distribution
    ]
    assert list(map(SpecifierSet, asked)) == [SpecifierSet(upstream.versions)] * required
