"""What runs for each fold of each trial, and what it calls its files."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from hpo_pilot.search import limits
from hpo_pilot.search.misfit import Misfit, MisfitError
from hpo_pilot.search.point import StrictStr
from hpo_pilot.search.point_shape import PointShape
from hpo_pilot.search.section import Section
from hpo_pilot.search.wording import FILE_PATTERN

_Text = Annotated[StrictStr, Field(min_length=1)]
_FileName = Annotated[StrictStr, Field(pattern=FILE_PATTERN)]

#: What the payload runner and the pilots write into a job's folder; what starts like the last is ours too.
OUR_FILES = frozenset(
    {"job.json", "progress.jsonl", "outputs.tar.gz", "payload.log", "runner.log", "userJobMetadata.json"}
)
OUR_PREFIX = "hpo_pilot_"


class FileNames(Section):
    """What the payload calls its files, for payloads written for other tools."""

    point: _FileName = Field("input.json", description="The point, written before the payload runs.")
    result: _FileName = Field("output.json", description="The figure of merit, written by the payload.")
    inputs: _FileName = Field("input_ds.json", description="The list of input files, written before it runs.")
    metadata: _FileName | None = Field(
        None, description="A JSON file of the payload's, kept with the trial's metadata; null: none."
    )
    progress: _FileName = Field(
        "progress.jsonl", description="Values while it runs: the payload appends a line with step and figure for each."
    )
    metrics: _FileName | None = Field(
        None, description="A file of the payload's that is kept like an output; null: none."
    )

    @model_validator(mode="after")
    def _check(self) -> FileNames:
        misfits: list[Misfit] = []
        first: dict[str, str] = {}
        for key, name in self.named().items():
            # The payload's own userJobMetadata.json is read before ours takes its place.
            ours = OUR_FILES - ({"userJobMetadata.json"} if key == "metadata" else set())
            ours -= {"progress.jsonl"} if key == "progress" else set()
            if name in ours or name.startswith(OUR_PREFIX):
                misfits.append(Misfit((key,), f"{name} is a file of hpo-pilot's own", "give it another name"))
            elif first.setdefault(name, key) != key:
                message = f"{name} is the {first[name]} file already"
                misfits.append(Misfit((key,), message, "each of the payload's files needs a name of its own"))
        if misfits:
            raise MisfitError(misfits)
        return self

    def named(self) -> dict[str, str]:
        """The names that there are, by what they are of."""
        return self.model_dump(exclude_none=True)


_PYTHON = re.compile(r"/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]|[A-Za-z0-9._+-]+")


class Payload(Section):
    """What runs for each fold of each trial."""

    files: _Text | None = Field(None, description="A folder that is sent along, relative to the search file.")
    command: _Text = Field(description="The shell command that trains and writes output.json.")
    python: _Text | None = Field(
        None,
        description="What `python` and `python3` are in the command: an absolute path or a name in PATH. Default: on "
        "this machine the Python of the environment active where the search is submitted, elsewhere the job's.",
    )
    container: _Text | None = Field(None, description="Image, .sif, .sqfs, or an unpacked root; null: none.")
    inputs: tuple[_Text, ...] = Field(
        (),
        max_length=limits.MOST_INPUTS,
        description="Input files: paths (also patterns), web or root URLs, or Rucio datasets (scope:name). They are "
        "put into the job's folder, and their names into input_ds.json.",
    )
    outputs: tuple[_Text, ...] = Field(
        (), max_length=limits.MOST_NAMES, description="Files kept for the best trials: hpo-pilot fetch best."
    )
    checkpoint: tuple[_Text, ...] = Field(
        (), max_length=limits.MOST_NAMES, description="Files and folders kept between attempts of a fold."
    )
    file_names: FileNames = Field(FileNames(), description="The payload's own names for its files.")
    point: PointShape = Field(
        PointShape(), description="How the point's file is made, where it is more than the parameters by name."
    )

    @property
    def kept_files(self) -> tuple[str, ...]:
        """The files that are kept for the best trials: the outputs, and the metrics file."""
        return self.outputs + ((self.file_names.metrics,) if self.file_names.metrics else ())

    @field_validator("python")
    @classmethod
    def _interpreter(cls, name: str | None) -> str | None:
        if name is not None and not _PYTHON.fullmatch(name):
            message = f"must be an absolute path or a name in PATH, not {name!r}"
            raise MisfitError([Misfit((), message, "as in /opt/conda/envs/torch/bin/python, or python3.12")])
        return name

    @field_validator("outputs", "checkpoint")
    @classmethod
    def _inside(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        misfits = [
            Misfit((index,), f"must be a path inside the job's folder, not {name!r}", "no '/' at the start, no '..'")
            for index, name in enumerate(names)
            if name.startswith(("/", "~")) or ".." in name.split("/")
        ]
        if misfits:
            raise MisfitError(misfits)
        return names
