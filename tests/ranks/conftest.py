"""The distribution tokendraw-ranks as if it were installed: the entry points of its manifest, on the path."""

import sys
import tomllib
from pathlib import Path

import pytest

from rank_threads import seeds_of_thread
from tokendraw import philox

MANIFEST = Path(__file__).parents[2] / "ranks/pyproject.toml"


@pytest.fixture(autouse=True, scope="session")
def installed_ranks(tmp_path_factory):
    """Write the metadata of the distribution, and find it."""
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / "tokendraw_ranks-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tokendraw-ranks\nVersion: 0.1.0\n", "utf-8"
    )
    groups = tomllib.loads(MANIFEST.read_text("utf-8"))["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in each.items()) for group, each in groups.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture(autouse=True)
def seeds_by_rank(monkeypatch):
    """Give each rank other fresh seeds."""
    monkeypatch.setattr(philox, "fresh_seeds", seeds_of_thread)
