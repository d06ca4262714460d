"""A room above its budget is named with what is too much; `make check` holds the budgets themselves."""

import budgets


def test_a_room_above_its_budget_and_a_file_in_no_room_are_named(tmp_path, capsys):
    path = tmp_path / "budgets.toml"
    path.write_text('[rooms]\nrest = { folders = ["release"], lines = 10, files = 2 }\n')
    assert budgets.main(path) == 1
    lines, files = (f"'rest' may have {budget}, found " for budget in ("10 lines", "2 files"))
    said = capsys.readouterr().err.splitlines()
    assert (said[0].startswith(lines), said[1].startswith(files)) == (True, True)
    assert "'core/src/tokendraw/__init__.py' is in no room of budgets.toml. Move it." in said
