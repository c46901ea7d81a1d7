"""A TARGET is spelled as uvicorn spells it, and a bad one gets a clear error (issue 2: the command line; bad input)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcptasks.cli.target import celery_target, load_target
from mcptasks.errors import ConfigurationError

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file of a project whose folder is the working directory but not on sys.path, as in a console script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)

    def write_file(name: str, source: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return file

    yield write_file
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(target: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_target(target)
    return str(refused.value)


def test_a_module_of_the_working_directory_is_found(write: Write) -> None:
    write("shop/server.py", "mcp = 'the server'\nother = 'another'\n")
    assert load_target("shop.server:other") == "another"


def test_the_attribute_is_mcp_when_left_out(write: Write) -> None:
    write("shop_default.py", "mcp = 'the server'\n")
    assert load_target("shop_default") == "the server"


def test_the_attribute_may_be_dotted_as_in_uvicorn(write: Write) -> None:
    write("shop_dotted.py", "class holder:\n    mcp = 'the server'\n")
    assert load_target("shop_dotted:holder.mcp") == "the server"


@pytest.mark.parametrize("target", ["a:b:c", ":mcp", "a:", "a..b:mcp", ".a:mcp", "a b:mcp", "a:b-c", "a:mcp()"])
def test_a_misspelled_target_is_told_the_right_form(target: str) -> None:
    assert "is not of the form module:attribute" in refusal(target)
    assert target in refusal(target)


@pytest.mark.parametrize("target", ["", "  "])
def test_an_empty_target_is_told_the_right_form(target: str) -> None:
    assert "TARGET is empty; write module:attribute" in refusal(target)


@pytest.mark.parametrize("target", ["workers/server.py", "server.py:mcp", "./workers/server:mcp"])
def test_a_file_name_is_told_to_become_a_module_name(target: str) -> None:
    assert "looks like a file" in refusal(target)


@pytest.mark.parametrize(("target", "missing"), [("nosuch:mcp", "nosuch"), ("nosuch.server:mcp", "nosuch")])
def test_a_missing_module_is_named_with_the_place_it_was_looked_for(write: Write, target: str, missing: str) -> None:
    where = write("unrelated.py", "").parent
    assert f"There is no module {missing} in {where}" in refusal(target)


def test_a_missing_submodule_of_an_existing_package_is_named_in_full(write: Write) -> None:
    write("shop_package/__init__.py", "")
    assert "There is no module shop_package.server in" in refusal("shop_package.server:mcp")


def test_a_missing_import_inside_the_module_is_not_taken_for_the_module_itself(write: Write) -> None:
    file = write("shop_imports.py", "import os\nimport shop_imports_nosuch\n")
    message = refusal("shop_imports:mcp")
    assert "Importing shop_imports failed: ModuleNotFoundError: No module named 'shop_imports_nosuch'" in message
    assert message.endswith(f"({file}, line 2)")


def test_an_error_inside_the_module_is_shown_with_its_place(write: Write) -> None:
    write("shop_uses.py", "from shop_helper import answer\nanswer()\n")
    helper = write("shop_helper.py", "def answer():\n    raise ValueError('no price list')\n")
    assert refusal("shop_uses:mcp") == f"Importing shop_uses failed: ValueError: no price list ({helper}, line 2)"


def test_a_syntax_error_inside_the_module_is_shown(write: Write) -> None:
    write("shop_syntax.py", "mcp = (\n")
    assert "Importing shop_syntax failed: SyntaxError" in refusal("shop_syntax:mcp")
    assert "shop_syntax.py, line 1" in refusal("shop_syntax:mcp")


def test_a_script_that_runs_and_exits_on_import_is_an_error_not_an_exit(write: Write) -> None:
    write("shop_script.py", "raise SystemExit(0)\n")
    assert "Importing shop_script failed: SystemExit: 0" in refusal("shop_script:mcp")


def test_a_missing_attribute_is_told_the_close_names(write: Write) -> None:
    write("shop_close.py", "mcp_server = 1\nother = 2\n")
    message = refusal("shop_close:mcp_servr")
    assert message == "shop_close has no mcp_servr. Did you mean mcp_server?"


def test_a_missing_attribute_with_no_close_name_is_told_what_there_is(write: Write) -> None:
    write("shop_far.py", "a = b = c = d = e = f = _g = 1\n")
    assert refusal("shop_far:mcp") == "shop_far has no mcp. It has: a, b, c, d, e, ..."


def test_a_missing_inner_attribute_names_its_holder(write: Write) -> None:
    write("shop_inner.py", "class holder:\n    pass\n")
    assert refusal("shop_inner:holder.mcp") == "shop_inner.holder has no mcp. It has: nothing"


APP = "class App:\n    def worker_main(self): ...\n"


def test_the_workers_of_a_server_are_its_modules_celery(write: Write) -> None:
    write("shop_celery.py", f"{APP}mcp = object()\napp = App()\ncelery = App()\n")
    assert celery_target("shop_celery:mcp") == "shop_celery:celery"


def test_a_celery_app_may_also_be_called_app(write: Write) -> None:
    write("shop_app.py", f"{APP}mcp = object()\nimport json as celery\napp = App()\n")
    assert celery_target("shop_app") == "shop_app:app"


def test_a_server_without_a_celery_app_is_told_how_to_get_one(write: Write) -> None:
    write("shop_unbound.py", "mcp = object()\ncelery = 'no app'\n")
    with pytest.raises(ConfigurationError, match=r"celery = tasks\.bind\(mcp\)"):
        celery_target("shop_unbound:mcp")
