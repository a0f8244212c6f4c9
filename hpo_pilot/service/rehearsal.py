"""A rehearsal: the first task of a search as it would be submitted, without registering or sending anything."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hpo_pilot.config import load_search
from hpo_pilot.jobs import task_name
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.panda.task_parameters import task_parameters
from hpo_pilot.service.embedded import nickname
from hpo_pilot.service.registration import pack_payload
from hpo_pilot.service.steering import trial_seed
from hpo_pilot.service.submissions import task_spec
from hpo_pilot.service.workdir import WorkDir

#: A real search gets a random identity when it is registered, and its server's address when it runs.
_UID = "00000000"
_SERVER = "http://127.0.0.1:25080"


def first_task(search_file: Path) -> dict[str, Any]:
    """The task parameters of the first generation, with an example of a uid and of a server's address.

    Raises:
        InputError: the search file or its payload is wrong.
    """
    search = load_search(search_file)
    with tempfile.TemporaryDirectory() as folder:
        sandbox = pack_payload(search, search_file, WorkDir(Path(folder)))
    count = min(search.budget.parallel, search.budget.trials)
    points = [search.space.canonical(point) for point in search.start[:count]]
    if len(points) < count:
        choice = search.optimizer
        optimizer = create_optimizer(
            choice.name, search.space, seed=search.seed, settings=choice.settings, trials=search.budget.trials
        )
        points += optimizer.ask(count - len(points), points)
    numbered = dict(enumerate(points, start=1))
    jobs = tuple((n, fold, trial_seed(search.seed, n)) for n in numbered for fold in range(search.folds.k))
    name = task_name(nickname(), search.name, _UID, 1, 0)
    task = task_spec(search, _UID, sandbox, name, 1, jobs, numbered)
    return task_parameters(task, owner=nickname(), vo="hpo_pilot", server=_SERVER, sandbox=sandbox.name)
