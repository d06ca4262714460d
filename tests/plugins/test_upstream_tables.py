"""The release tables of our plugins: the decision on a version by its metadata, and its whole reason."""

import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from call_tables import pairs
from fake_candidates import H100, LAPTOP, MI300X
from fake_dists import fake_dists
from tokendraw import SamplerUnavailableError, operations
from tokendraw.backends.resolution.upstream import is_tested, release_of
from tokendraw.providers import decide, gather
from tokendraw.resolution import Choice, State
from tokendraw_aiter import UPSTREAM as AITER
from tokendraw_engine_ops import FLASHINFER as PACKING
from tokendraw_flashinfer.kernel_sequences import UPSTREAM as FLASHINFER
from tokendraw_native import UPSTREAM as NATIVE
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

DECISIONS = [
    (plugin, operation, version, words.format(version))
    for line, words in pairs(Path(__file__).with_name("releases.txt"))
    for plugin, operation, *versions in [line.split()]
    for version in versions
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
