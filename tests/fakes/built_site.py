"""Folder, version and pages of the built site."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"


def newest() -> str:
    """Return the folder of the version that the site's front leads to."""
    return json.loads((SITE / "versions.json").read_text(encoding="utf-8"))[0]["version"]


def page_paths() -> list[str]:
    """List the pages of the newest version, by path in its folder; none where nothing is built."""
    folder = SITE / newest() if (SITE / "versions.json").exists() else SITE
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
