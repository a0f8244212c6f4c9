"""A search in a notebook or a script: its results as data frames, its figures, its progress while it runs."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hpo_pilot.advice import Place
from hpo_pilot.client.documents import (
    OVER_SEARCHES,
    StatusDocument,
    TrialDocument,
    is_unsteered,
    over_count,
    planned_count,
)
from hpo_pilot.client.search_client import SearchClient
from hpo_pilot.client.subjects import search_of, subject_of
from hpo_pilot.errors import InputError
from hpo_pilot.figures.catalogue import build, kinds
from hpo_pilot.figures.figure import Figure, message_figure
from hpo_pilot.figures.plotly_figure import plotly_spec
from hpo_pilot.figures.wording import number, plus_minus, scalar
from hpo_pilot.notebook.frames import folds_frame, intermediate_frame, pandas, trials_frame
from hpo_pilot.notebook.progress import show_progress
from hpo_pilot.search import Search

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def open_search(
    identity: str | int,
    workdir: str | Path | None = None,
    *,
    store: str | None = None,
    service: str | None = None,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
) -> OpenedSearch:
    """Opens a search to look at it; nothing here changes it.

    Args:
        identity: the search's name or number.
        workdir: the work folder of its store; default ./hpo-pilot.
        store: another store's SQLAlchemy URL.
        service: the URL of a service that has it, instead of a store.
        token_file: of a service: holds your token.
        ca: of a service: PEM file of the authority that its certificate comes from, where it is not a usual one.

    Raises:
        InputError: there is no such search, an argument is wrong, or pandas is missing.
        TryAgainError: the store or the service is out of reach.
    """
    pandas()  # says now what to install, not at the first data frame
    client: SearchClient
    if service is None:
        if token_file is not None or ca is not None:
            raise InputError("token_file and ca are for a service: give its URL as service")
        from hpo_pilot.client.local_client import LocalClient  # noqa: PLC0415 - brings SQLAlchemy

        client = LocalClient(workdir, store)
    else:
        from hpo_pilot.client.rest_client import connect  # noqa: PLC0415 - as above: one of two

        if store is not None or workdir is not None:
            raise InputError("a service has its own store: give service, or workdir and store")
        if token_file is None:
            raise InputError("token_file is missing: it holds your token for the service")
        client = connect(service, token_file, ca=ca)
    return OpenedSearch(client, str(identity), Place(workdir, store, service, token_file, ca))


class OpenedSearch:
    """A search, looked at anew with each attribute: while it runs, results come in.

    It may be used in a ``with`` block, and closed by `close`. Attributes and figures raise what its client raises:
    TryAgainError where the store or the service is out of reach.
    """

    def __init__(self, client: SearchClient, identity: str, place: Place) -> None:
        """Looks the search up.

        Args:
            client: where it is.
            identity: its name or number.
            place: how commands name where it is.

        Raises:
            InputError: there is no such search, or it is a family of several.
        """
        self._client = client
        self._place = place
        status = client.status(identity)
        self._search = search_of(status)
        self._identity = str(status["id"])
        #: The search's name.
        self.name: str = status["name"]

    # --- what it is, and how it stands ---

    @property
    def definition(self) -> Search:
        """What is searched, how: space, objective, optimizer, budget, payload."""
        return self._search

    @property
    def status(self) -> StatusDocument:
        """All that `hpo-pilot status --json` tells."""
        return self._client.status(self._identity)

    @property
    def state(self) -> str:
        """Its state: `submitted`, `running`, `paused`, `done`, `stopped` or `failed`."""
        return self.status["state"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial as a dictionary (`number`, `point`, `value`, `std`, …); None while there is none.

        Raises:
            InputError: it has several objectives, and so no best; `front` has the trials that none is better than.
        """
        found = self._client.best(self._identity)
        if isinstance(found, list) or len(self._search.objectives) > 1:
            raise InputError(f"search {self.name!r} has several objectives and so no best trial: look at .front")
        return None if found is None else dict(found)

    @property
    def front(self) -> pd.DataFrame:
        """The trials that none is better than, by the first objective; with one objective the best alone."""
        found = self._client.best(self._identity)
        listed = found if isinstance(found, list) else [] if found is None else [found]
        return trials_frame(self._search, listed)

    @property
    def trials(self) -> pd.DataFrame:
        """All trials; see `hpo_pilot.notebook.frames.trials_frame`."""
        return trials_frame(self._search, self._documents())

    @property
    def folds(self) -> pd.DataFrame:
        """All folds of all trials, with what the payload measured."""
        return folds_frame(self._search, self._documents())

    @property
    def intermediate(self) -> pd.DataFrame:
        """What trials reported while they ran."""
        return intermediate_frame(self._client.intermediate(self._identity))

    def _documents(self) -> list[TrialDocument]:
        return self._client.trials(self._identity, logs=False)

    def watch(self) -> None:
        """Shows how far it is until it is over: in a notebook as a bar that grows, in a script as lines of text.

        An interrupt (the notebook's stop button, Ctrl-C) ends the watching; the search goes on.
        """
        show_progress(self._client.watch(self._identity))

    def report(self) -> str:
        """The report: one self-contained HTML document."""
        return self._client.report(self._identity)

    def close(self) -> None:
        """Lets go of the store or the service."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- figures ---

    def plot_convergence(self) -> go.Figure:
        """Results in the order in which they came, and the best so far; with that of other searches of the space."""
        return self._plot("convergence")

    def plot_front(self) -> go.Figure:
        """The Pareto front, of a search with several objectives; of more than two, the first pair."""
        return self._plot("front")

    def plot_parallel(self) -> go.Figure:
        """Trials as lines over an axis for each parameter, to brush."""
        return self._plot("parallel")

    def plot_importance(self) -> go.Figure:
        """Which parameters decide, and how sure that is; of several objectives for the first."""
        return self._plot("importance")

    def plot_slices(self, parameter: str | None = None) -> go.Figure | list[go.Figure]:
        """The figure of merit against one parameter; without a name a list of figures, one for each.

        Raises:
            InputError: there is no such parameter.
        """
        if parameter is None:
            return [_drawn(figure) for figure in self._figures("slices")]
        if parameter not in self._search.space.names:
            raise InputError(f"there is no parameter {parameter!r}; there is {', '.join(self._search.space.names)}")
        found = [figure for figure in self._figures("slices") if figure.title == parameter]
        return _drawn(found[0] if found else _nothing("slices", parameter))

    def plot_contours(self) -> list[go.Figure]:
        """The figure of merit over the planes of the parameters that matter most, two at a time."""
        return [_drawn(figure) for figure in self._figures("contours")]

    def plot_folds(self) -> go.Figure:
        """How far the folds of the best trials lie apart."""
        return self._plot("folds")

    def plot_curves(self) -> go.Figure:
        """What trials reported while they ran, and where hopeless ones were stopped."""
        return self._plot("curves")

    def plot_slots(self) -> go.Figure:
        """Which job ran when and where; with more jobs than can be told apart, how many ran and waited."""
        found = self._figures("slots")
        return _drawn(found[-1] if found else _nothing("slots", "Slots over time"))

    def plot_failures(self) -> list[go.Figure]:
        """Where in the space trials fail."""
        return [_drawn(figure) for figure in self._figures("failures")]

    def _plot(self, key: str) -> go.Figure:
        found = self._figures(key)
        titles = {kind.key: kind.title for kind in kinds(self._search)}
        return _drawn(found[0] if found else _nothing(key, titles.get(key, key.capitalize())))

    def _figures(self, key: str) -> list[Figure]:
        return build(key, subject_of(self._client, self._identity, keys=(key,)))

    # --- how it shows itself ---

    def __repr__(self) -> str:
        rows = "; ".join(f"{name}: {value}" for name, value in self._facts())
        return f"<search {self.name!r}; {rows}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: how it stands, and the best point. Every text is escaped."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in self._facts()
        )
        return f"<table><caption>search {escape(self.name)}</caption><tbody>{rows}</tbody></table>"

    def _facts(self) -> list[tuple[str, str]]:
        status, advised = self.status, self._place.completed
        over, planned, failed = over_count(status), planned_count(status), status["trials"].get("failed", 0)
        facts = [
            ("state", status["state"] + (f" ({advised(status['message'])})" if status["message"] else "")),
            ("trials", f"{over} of {planned} over, {failed} failed"),
        ]
        best = status["best"]
        if best is not None and not isinstance(best["value"], list) and not isinstance(best["std"], list):
            metric = self._search.objective.metric
            facts.append((f"best {metric}", f"{plus_minus(best['value'], best['std'])} (trial {best['number']})"))
            facts += [(name, scalar(value)) for name, value in best["point"].items()]
        if front := status.get("front"):
            facts.append(("front", f"{len(front['trials'])} trials, hypervolume {number(front['hypervolume'])}"))
        if is_unsteered(status):
            commands = advised(self._client.how_to_steer(self._identity))
            facts.append(("steering", f"nothing steers it now: {commands}"))
        elif status["state"] not in OVER_SEARCHES:
            facts.append(("next", ".watch() shows how far it is"))
        return facts


def _drawn(figure: Figure) -> go.Figure:
    import plotly.graph_objects as go  # noqa: PLC0415 - takes a second to load

    # No template: a notebook's theme would colour over what the colours mean.
    return go.Figure({**plotly_spec(figure, title=True)})


def _nothing(key: str, title: str) -> Figure:
    return message_figure(key, title, "There is nothing to draw yet.")
