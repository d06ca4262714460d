"""Install commands in messages: until tokendraw's packages are on an index, commands for a checkout."""

import re
from pathlib import Path

from tokendraw.errors import formatting as _install
from tokendraw.errors.formatting import how_to_install, pip_install, where

ROOT = Path(__file__).parents[2]


def test_a_command_names_the_checkout_until_there_is_an_index(monkeypatch):
    upgrade = pip_install("tokendraw", options="--upgrade")
    assert (upgrade, where("tokendraw")) == ("pip install --upgrade ./core", " in tokendraw's checkout")
    assert how_to_install("tokendraw", "files") == "`pip install './core[files]'` in tokendraw's checkout"
    assert how_to_install("tokendraw-native") == "`pip install ./plugins/native` in tokendraw's checkout"
    assert how_to_install("acme-tokendraw") == "`pip install acme-tokendraw`"
    monkeypatch.setattr(_install, "_ON_AN_INDEX", True)
    assert pip_install("tokendraw", options="--upgrade") == "pip install --upgrade tokendraw"
    assert how_to_install("tokendraw", "files") == "`pip install 'tokendraw[files]'`"
    assert how_to_install("tokendraw-native") == "`pip install tokendraw-native`"


def test_no_other_text_tells_users_to_install_tokendraw_by_name():
    sources = [
        path
        for part in ("core/src", "testing", "bench", "plugins", "integrations", "docs")
        for path in (ROOT / part).rglob("*")
    ]
    told = {
        str(path.relative_to(ROOT)): line
        for path in [*sources, ROOT / "README.md"]
        if path.suffix in (".py", ".md", ".template") and path.name != "_install.py"
        for line in re.findall(r"pip install (?:-\S+ )*['\"]?tokendraw.*", path.read_text(encoding="utf-8"))
    }
    assert told == {}
