"""The steering container's recipe: what it installs is there and is enough, and its README's example runs."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

from hpo_pilot.optimizers import optimizer_names

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "containers" / "steering" / "Containerfile").read_text()
README = (ROOT / "containers" / "steering" / "README.md").read_text()

#: What only the service needs, by the names under which it is imported.
NOT_IN_IT = ("sqlalchemy", "alembic", "pandaclient", "starlette", "fastapi", "uvicorn", "jinja2", "plotly", "jwt")


def extras() -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False)
    parser.read(ROOT / "setup.cfg")
    return dict(parser["options.extras_require"])


def test_the_recipe_copies_and_installs_what_there_is():
    lines = [line.split() for line in RECIPE.splitlines() if line and not line.startswith("#")]
    assert lines[0][0] == "FROM"
    assert (installed := re.search(r"--requirement /locks/(steering)\.txt", RECIPE)) and installed[1] in extras()
    assert "WORKDIR /data" in RECIPE  # where iDDS mounts the folder with the files
    assert not any(line[0] == "ENTRYPOINT" for line in lines)  # iDDS gives the whole command


def test_the_service_has_all_that_steering_has():
    assert set(extras()["steering"].split()) <= set(extras()["service"].split())


#: Proposes points with every optimizer, without the packages that the container lacks.
STEER_ALL = f"""
import sys
sys.modules.update(dict.fromkeys({NOT_IN_IT!r}))
from hpo_pilot.cli.main import main
for optimizer in sys.argv[1:]:
    words = ["--n", "2", "--infile", "in.json", "--space", "space.json", "--outfile", optimizer + ".json"]
    sys.argv[1:] = ["steer", "--optimizer", optimizer, *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{{optimizer}} ended with {{ended.code}}")
"""


def test_what_it_installs_is_enough(tmp_path):
    (tmp_path / "space.json").write_text('{"x": [0, 1], "c": ["a", "b", "c"]}')
    points = [[{"x": i / 10, "c": "a"}, float(i)] for i in range(8)]
    (tmp_path / "in.json").write_text(json.dumps({"points": points, "opt_space": None}))
    argv = [sys.executable, "-c", STEER_ALL, *optimizer_names()]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    assert {name: len(json.loads((tmp_path / f"{name}.json").read_text())) for name in optimizer_names()} == (
        dict.fromkeys(optimizer_names(), 2)
    )


def test_the_readmes_example_runs(tmp_path):
    example = README.split("Try it without iDDS:")[1].strip()
    script = example.replace("hpo-pilot", f"{sys.executable} -m hpo_pilot.cli")
    result = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert [set(point) for point in json.loads(result.stdout)] == [{"lr"}, {"lr"}]


def test_the_readmes_execution_string_is_one(tmp_path):
    (tmp_path / "in.json").write_text('{"points": [], "opt_space": {"x": [0, 1]}}')
    found = re.search(r'--steeringExec "hpo-pilot ([^"]+)"', README)
    assert found
    command = found[1]
    for placeholder, value in {"%NUM_POINTS": "2", "%MAX_POINTS": "4", "%IN": "in.json", "%OUT": "out.json"}.items():
        assert placeholder in command
        command = command.replace(placeholder, value)
    argv = [sys.executable, "-m", "hpo_pilot.cli", *command.split()]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=600)
    assert len(json.loads((tmp_path / "out.json").read_text())) == 2
