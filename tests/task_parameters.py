"""Task parameters like those that hpo-pilot submits, without a sandbox."""

from __future__ import annotations

from typing import Any


def bare_params(name: str, n_jobs: int, arguments: str) -> dict[str, Any]:
    """Those of a task without outputs, each of whose jobs gets `arguments` and its number."""
    return {
        "taskName": name,
        "uniqueTaskName": True,
        "vo": "hpo_pilot",
        "userName": "me",
        "prodSourceLabel": "user",
        "processingType": "hpo-pilot",
        "site": "LOCAL",
        "architecture": "",
        "transUses": "",
        "transHome": None,
        "transPath": "http://127.0.0.1/trf/user/runGen-00-00-02",
        "noInput": True,
        "nEvents": n_jobs,
        "nEventsPerJob": 1,
        "coreCount": 1,
        "ramCount": 2000,
        "hpoWalltime": 600,
        "skipScout": True,
        "log": {
            "dataset": f"{name[:-1]}.log/",
            "type": "template",
            "param_type": "log",
            "value": f"{name[:-1]}.log.$JEDITASKID.${{SN}}.log.tgz",
        },
        "jobParameters": [
            {"type": "constant", "value": '-j ""'},
            {"type": "constant", "value": '-p "', "padding": False},
            {"type": "constant", "value": arguments, "padding": False},
            {
                "type": "template",
                "value": "${SEQNUMBER}",
                "param_type": "pseudo_input",
                "dataset": "seq_number",
                "offset": 0,
                "padding": False,
            },
            {"type": "constant", "value": '"'},
        ],
    }


def make_params(name: str = "user.me.test/", n_jobs: int = 3, **more: Any) -> dict[str, Any]:
    """Those of a task with a sandbox's address and an output for each job; `more` of them, or others."""
    params = bare_params(name, n_jobs, "runner%20--number%20")
    outputs = f"{'.'.join(name.split('.')[:2])}.$JEDITASKID._${{SN/P}}.outputs.tar.gz"
    return params | {
        "maxAttempt": 3,
        "cliParams": "hpo-pilot run",
        "sourceURL": "http://127.0.0.1:1",
        "log": params["log"] | {"container": f"{name[:-1]}.log/"},
        "jobParameters": [
            {"type": "constant", "value": '-j "" --sourceURL ${SURL}'},
            {
                "type": "template",
                "value": outputs,
                "param_type": "output",
                "dataset": f"{name[:-1]}_outputs/",
                "container": f"{name[:-1]}_outputs/",
                "hidden": True,
            },
            {"type": "constant", "value": f"-o \"{{'outputs.tar.gz': '{outputs}'}}\""},
            *params["jobParameters"][1:],
        ],
        **more,
    }
