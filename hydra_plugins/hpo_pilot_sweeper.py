"""hpo_pilot's sweeper for Hydra, which looks for plug-ins only in the namespace package `hydra_plugins`.

Hydra imports this file at each start of an application, so it loads nothing of hpo_pilot before a sweep. It also goes
to the jobs, where hpo_pilot may be missing: there `ResultFile` writes the figure of merit, and configurations that
name the sweeper can be composed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import Container, DictConfig, OmegaConf


@dataclass
class HpoPilotSweeperConf:
    """`hydra.sweeper.*`; the manual describes the keys on its page on payloads."""

    _target_: str = "hydra_plugins.hpo_pilot_sweeper.HpoPilotSweeper"
    n_trials: int = 20
    n_jobs: Optional[int] = None
    direction: Any = "minimize"
    optimizer: Any = "auto"
    seed: int = 0
    params: Optional[Dict[str, Any]] = None
    name: Optional[str] = None
    files: Optional[str] = None
    command: Optional[str] = None
    workdir: Optional[str] = None
    server: Optional[str] = None
    service: Optional[str] = None
    token_file: Optional[str] = None
    ca: Optional[str] = None
    sections: Dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/sweeper", name="hpo_pilot", node=HpoPilotSweeperConf, provider="hpo_pilot_sweeper"
)


class HpoPilotSweeper(Sweeper):
    """Runs the application as a search: `python app.py -m hydra/sweeper=hpo_pilot 'lr=interval(1e-4,1e-1)'`."""

    def __init__(self, **settings: Any) -> None:
        """Takes the values of `HpoPilotSweeperConf`."""
        self._settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Takes the configuration; jobs start the application themselves, so there is no launcher."""
        self.config, self._loader = config, hydra_context.config_loader

    def sweep(self, arguments: List[str]) -> None:
        """Runs the search to its end, and writes optimization_results.yaml into the sweep's folder."""
        from hpo_pilot.operations.hydra_sweep import run_sweep  # noqa: PLC0415 - see the module's docstring

        assert self.config is not None
        run_sweep(self._settings, self.config, arguments, self._loader)


class ResultFile(Callback):
    """Writes the return value of the task function to output.json: one value, or one for each objective."""

    def __init__(self) -> None:
        """Notes the folder of the job, before the application may leave it."""
        self._path = Path("output.json").absolute()

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Writes the file; after an exception there is none."""
        if job_return.status is not JobStatus.COMPLETED:
            return
        found: Any = job_return.return_value
        if isinstance(found, Container):
            found = OmegaConf.to_container(found)
        try:
            output: Dict[str, Any]
            if isinstance(found, Mapping):
                output = json.loads(json.dumps(dict(found), default=float))  # numbers of numpy and torch
            else:
                parts = [float(part) for part in found] if isinstance(found, (list, tuple)) else [float(found)]
                several = {f"value_{number}": part for number, part in enumerate(parts, 1)}
                output = several if len(parts) != 1 else {"value": parts[0]}
        except (TypeError, ValueError):
            output = {"status": 1, "message": f"the task function must return a number, and returned {found!r:.200}"}
        temporary = self._path.with_name(f".output.{os.getpid()}.json")  # several ranks may end at once
        temporary.write_text(json.dumps(output))
        temporary.replace(self._path)
