"""The manual is complete, its links lead somewhere, and what it shows is valid."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from typer.main import get_command

from hpo_pilot import load_search
from hpo_pilot.cli.main import app
from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.manual import PAGES, page_named
from hpo_pilot.server import database
from hpo_pilot.steering.workdir import nickname
from hpo_pilot.store import tables
from hpo_pilot.web.pages import anchor, as_html
from schemas import reference
from tests.manual.pages import MANUAL, REPOSITORY, listings, prose

FILES = sorted(MANUAL.glob("*.md"))


def test_every_file_is_a_page_and_every_page_a_file():
    assert sorted(page.path for page in PAGES) == FILES
    assert all(page.title and page.text().startswith("# ") for page in PAGES)


def test_an_unknown_page_names_those_that_there_are():
    with pytest.raises(InputError, match="did you mean tutorial"):
        page_named("tutorail")
    with pytest.raises(InputError, match="quick-start"):
        page_named("zzz")


@pytest.mark.parametrize("page", FILES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith("http"):
            continue
        file, _, fragment = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        if fragment:
            heads = {anchor(head) for head in re.findall(r"^#+ (.*)$", prose(there), re.MULTILINE)}
            assert fragment in heads, (target, heads)


def test_the_page_on_architecture_names_every_folder_and_every_table():
    page = page_named("architecture")
    folders = [path.parent.name for path in (REPOSITORY / "hpo_pilot").glob("*/__init__.py")]
    rooms = {path.relative_to(REPOSITORY / "tests").parts[0] for path in (REPOSITORY / "tests").glob("*/**/test_*.py")}
    assert [name for name in [*folders, *rooms] if f"{name}/`" not in page.text()] == []
    picture = (page.path.parent / "pictures" / "tables.svg").read_text()
    drawn = re.findall(r'<text class="h"[^>]*>(\w+)</text>', picture)
    assert sorted(drawn) == sorted([*tables.metadata.tables, *database.metadata.tables])


def test_html_in_a_page_is_text():
    assert "<script" not in as_html(page_named("payload"))
    assert anchor("`a` & B's c") == "a--bs-c"


@pytest.mark.parametrize("page", FILES, ids=lambda page: page.stem)
def test_python_compiles_and_yaml_is_valid(page, tmp_path):
    (tmp_path / "my_training").mkdir()
    (tmp_path / "digits").mkdir()
    (tmp_path.parent / "results").mkdir(exist_ok=True)
    (tmp_path.parent / "results" / "summer.csv").write_text("learning_rate,layers,value\n0.01,2,0.5\n")
    (quick,) = [one for one in listings(MANUAL / "quick-start.md") if one.file == "search.yaml"]
    whole = yaml.safe_load(quick.text)
    for listing in listings(page):
        if listing.language == "python":
            compile(listing.text, page.name, "exec")
        if listing.language == "yaml":
            found = yaml.safe_load(listing.text)
            if "parameters" in found:  # a sweep of W&B, which a command of the page imports
                continue
            if "batch" in found:  # a site profile
                (tmp_path / f"{found['name']}.yaml").write_text(listing.text)
                assert load_site(tmp_path / f"{found['name']}.yaml").name == found["name"]
                continue
            (tmp_path / "search.yaml").write_text(yaml.safe_dump(found if "search" in found else {**whole, **found}))
            payload = found["payload"] if isinstance(found.get("payload"), dict) else {}
            for name in [payload.get("container"), *payload.get("inputs", ())]:
                if name is not None:
                    (tmp_path / name).write_bytes(b"")
            assert load_search(tmp_path / "search.yaml").name


def written_commands() -> list[tuple[str, str]]:
    """Every hpo-pilot command of the listings that no test runs, with its page; alternatives a|b are the first."""
    found = []
    for page in [*FILES, REPOSITORY / "README.md", REPOSITORY / "deploy" / "README.md"]:
        shell = [one.text for one in listings(page) if one.language == "sh"]
        indented = re.findall(r"^    (hpo-pilot .*(?:\\\n.*)*)$", prose(page), re.MULTILINE)
        text = "\n".join([*shell, *indented]).replace("\\\n", " ")
        found += [(page.name, line.strip()) for line in text.splitlines() if re.match(r"\s*(\S*/)?hpo-pilot ", line)]
    return found


@pytest.mark.parametrize(("page", "line"), written_commands())
def test_written_commands_are_understood(page, line):
    words = shlex.split(re.sub(r" [|>&].*$", "", re.sub(r"\s+#.*$", "", line)))[1:]
    command = get_command(app)
    context = typer.Context(command, info_name="hpo-pilot")
    while hasattr(command, "get_command") and not (command.invoke_without_command and not words):
        name = words.pop(0)
        assert name in command.list_commands(context), line
        command = command.get_command(context, name)
        context = typer.Context(command, info_name=name, parent=context)
    if context.info_name == "pilot":
        from hpo_pilot.pilot.__main__ import parser

        parser().parse_args([word for word in words if word not in ("[…]", "…")])
    else:
        command.make_context(context.info_name, [word.split("|")[0] for word in words], parent=context.parent)


def test_pruns_output_is_named_after_the_account():
    """panda-client refuses `user.` with another name than the token's; the service's own token has this one."""
    (word,) = re.findall(r"^prun .* --outDS (\S+(?: -un\))?\S*)", (MANUAL / "service.md").read_text(), re.MULTILINE)
    named = subprocess.run(["sh", "-c", f"echo {word}"], capture_output=True, text=True, check=True).stdout
    assert named.startswith(f"user.{nickname()}."), word


def test_reference_pages_are_as_the_models_and_commands_say():
    assert reference.main(["--check"]) == 0


def test_a_stale_reference_page_is_named(monkeypatch, capsys, tmp_path):
    class Stale:
        path = tmp_path / "commands.md"

    monkeypatch.setattr(reference, "page_named", lambda _name: Stale)
    monkeypatch.setattr(reference, "search_file_page", lambda: "new")
    monkeypatch.setattr(reference, "commands_page", lambda: "new")
    assert reference.main(["--check"]) == 1
    assert "commands.md" in capsys.readouterr().err
    assert not Path(Stale.path).exists()


def test_files_that_the_architecture_page_names_exist():
    text = (MANUAL / "architecture.md").read_text()
    named = {name for name in re.findall(r"`([\w/]+\.(?:py|md))`", text) if "/" in name}
    rooms = [MANUAL.parent, MANUAL.parent.parent]
    assert len(named) > 20
    assert {name for name in named if not any((room / name).is_file() for room in rooms)} == set()
