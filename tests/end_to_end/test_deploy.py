"""The examples in deploy/ are what the code takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from hpo_pilot.server.issuers import Issuers
from tests.command_here import command_here

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEXTS = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


def option_names(command: str) -> set[str]:
    done = command_here(*command.split(), "--help")
    assert done.returncode == 0
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


def commands() -> list[tuple[str, list[str]]]:
    """(command, its words) of every call of hpo-pilot in deploy/."""
    found = []
    for path in TEXTS:
        text = re.sub(r"\\\n[ #]*", " ", path.read_text())
        for line in re.findall(
            r"^(?:    |ExecStart=|#\s+)(?:sudo -u \S+ )?(?:\S*/)?hpo-pilot (\w.*)$", text, re.MULTILINE
        ):
            words = shlex.split(line, comments=True)
            name = " ".join(words[:2]) if words[0] in ("token", "pilots") else words[0]
            found.append((name, words))
    return found


def test_every_option_is_one():
    called = commands()
    assert {"serve", "pilot", "token create", "run", "doctor"} <= {name for name, _ in called}
    known = {name: option_names(name) for name in {name for name, _ in called}}
    for name, words in called:
        assert {word for word in words if word.startswith("--")} <= known[name], words


def test_the_issuers():
    issuers = Issuers(DEPLOY / "issuers.json")
    (issuer,) = json.loads((DEPLOY / "issuers.json").read_text())
    assert issuers.knows(issuer)
    settings = issuers.client_settings("atlas")
    assert settings is not None
    assert settings["oidc_config_url"].startswith("https://") and issuers.browser_clients()["atlas"].issuer == issuer


def test_a_pilot_3_is_set_up_as_the_tests_do_it():
    readme = (DEPLOY / "README.md").read_text()
    ours = (ROOT / "tests" / "real" / "pilot3.py").read_text()
    section = readme.partition("## A released Pilot 3")[2].partition("\n## ")[0]
    settings = re.findall(r"^    (\w+):", section, re.MULTILINE)
    assert len(settings) >= 8
    for name in [*settings, *re.findall(r"--[a-z][\w-]+", section), *re.findall(r"[A-Z]+_[A-Z_]+(?==)", section)]:
        assert name in ours, name


def test_every_file_that_is_named_is_there():
    text = (DEPLOY / "README.md").read_text()
    for target in [*re.findall(r"\]\(([^)#:]+)\)", text), *re.findall(r"`(systemd/[\w.-]+)`", text)]:
        assert (DEPLOY / target).exists(), target
