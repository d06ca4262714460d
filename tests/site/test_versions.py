"""The list of versions beside the built ones, and the front that leads to the newest."""

import json
from types import SimpleNamespace

import pytest

hooks = pytest.importorskip("hooks", reason="needs the tools of `make test-site`")

pytestmark = pytest.mark.browser


def test_the_newest_version_comes_first_and_a_release_before_its_candidates(tmp_path):
    for name in ("0.9.0", "0.10.0rc1", "0.10.0", "0.2.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    hooks.on_post_build(SimpleNamespace(site_dir=tmp_path / "0.9.0"))
    entries = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in entries] == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.1"]
    assert [entry["aliases"] for entry in entries] == [["latest"], [], [], []]
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'content="0; url=0.10.0/index.html"' in front
    assert all(f'href="{entry["version"]}/index.html"' in front for entry in entries)
