"""A rehearsal: the first task of a search as it would be submitted, without registering or sending anything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpo_pilot.jobs import task_name
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.panda.manager import scouts
from hpo_pilot.panda.panda_server import environment_vo
from hpo_pilot.panda.task_parameters import task_parameters
from hpo_pilot.search import Search
from hpo_pilot.search.earlier import EarlierResults
from hpo_pilot.search.objective import costs
from hpo_pilot.service.nickname import nickname
from hpo_pilot.service.registration import pack_search
from hpo_pilot.service.submissions import official_group, task_jobs, task_spec, trial_seed, trials_per_task
from hpo_pilot.service.target import chosen_server
from hpo_pilot.service.warm_start import earlier_results
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, Store

#: A real search gets a random identity when it is registered, and its server's address when it runs.
_UID = "00000000"
_SERVER = "http://127.0.0.1:25080"


def first_task(
    search_file: Path, server: str | None = None, store: Callable[[], Store | None] = lambda: None
) -> dict[str, Any]:
    """The task parameters of the first generation, with an example of a uid and of an embedded server's address.

    Args:
        search_file: the search file.
        server: the PanDA server: a URL, or `embedded`; None: the one that PANDA_URL_SSL names, else the embedded one.
        store: opens the store in which earlier searches are found, where the search starts from any.

    Raises:
        InputError: the search file or its payload is wrong, or an earlier search is not there.
    """
    target = chosen_server(server)
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_search(search_file, WorkDir(Path(folder)))
    opened = store() if packed.search.warm_start else None
    earlier = earlier_results(opened, packed.search, packed.results)
    return first_task_of(packed.search, packed.sandbox, target, earlier=earlier)


def first_task_of(
    search: Search, sandbox: Path, server: str = EMBEDDED, *, earlier: Sequence[EarlierResults] = ()
) -> dict[str, Any]:
    """The same of a search whose payload is packed; the archive itself is not looked at."""
    ours = server == EMBEDDED
    # panda-client finds out the nickname when there is a login: nothing is asked for here.
    owner = nickname() if ours else os.environ.get("PANDA_NICKNAME") or nickname()
    vo = "hpo_pilot" if ours else environment_vo()
    most = trials_per_task(search, None if ours else scouts(vo))
    count = min(search.budget.parallel, search.budget.trials, most)
    points = [search.space.canonical(point) for point in search.start[:count]]
    if not points:
        choice = search.optimizer
        optimizer = create_optimizer(
            choice.name,
            search.space,
            seed=search.seed,
            settings=choice.settings,
            trials=search.budget.trials,
            objectives=len(search.objectives),
        )
        optimizer.tell(
            (known.point, known.figures and costs(search.objectives, known.figures)) for known in search.known
        )
        for one in earlier:
            optimizer.tell_earlier(one.source, one.results)
        points = optimizer.ask(count, [])
    numbered = dict(enumerate(points, start=1))
    jobs = task_jobs(search, [(number, trial_seed(search.seed, number)) for number in numbered])
    name = task_name(owner, search.name, _UID, 1, 0, group=official_group(search))
    task = task_spec(search, _UID, sandbox, name, 1, jobs, numbered)
    url = _SERVER if ours else server
    return task_parameters(task, owner=owner, vo=vo, server=url, sandbox=sandbox.name, ours=ours)
