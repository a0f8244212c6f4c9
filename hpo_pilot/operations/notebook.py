"""A search in a notebook or a script: data frames, figures and progress."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from hpo_pilot.advice import Place, printable
from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.operations.client import SearchClient, connect
from hpo_pilot.report.catalogue import build, check_axes, kinds
from hpo_pilot.report.documents import OVER_SEARCHES, ProgressDocument, StatusDocument, is_unsteered
from hpo_pilot.report.figure import Figure, FigureData, PeerSearch, Reports, message_figure, plotly_spec, same_question
from hpo_pilot.report.figure_svg import SVG_KINDS, figure_svg
from hpo_pilot.report.formatting import best_text, count, front_text, result_text, scalar, whole
from hpo_pilot.report.frames import folds_frame, intermediate_frame, pandas, trials_frame
from hpo_pilot.report.result_figures import PEER_LIMIT
from hpo_pilot.report.trial_documents import (
    IntermediateDocument,
    RecommendationDocument,
    TrialDocument,
    time_of,
    trial_of,
)
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
    """Opens a search for reading; the returned object cannot change it.

    Args:
        identity: the search's name or number.
        workdir: work folder of its store; default ./hpo-pilot.
        store: SQLAlchemy URL of another store.
        service: URL of the service with the search, instead of a store.
        token_file: file with your token for the service.
        ca: PEM file with the authority of the service's certificate, if the system does not trust it already.

    Raises:
        InputError: there is no such search, an argument is wrong, or pandas is missing.
        TryAgainError: the store or the service is out of reach.
    """
    pandas()  # raises here if pandas is missing, not at the first data frame
    if service is None:
        if token_file is not None or ca is not None:
            raise InputError("token_file and ca are for a service: give its URL as service")
        client = SearchClient.local(workdir, store)
    else:
        if store is not None or workdir is not None:
            raise InputError("a service has its own store: give service, or workdir and store")
        if token_file is None:
            raise InputError("token_file is missing: it holds your token for the service")
        client = connect(service, token_file, ca=ca)
    return OpenedSearch(client, str(identity), Place(workdir, store, service, token_file, ca))


class OpenedSearch:
    """A search for reading. Each access to an attribute reads the present state: while it runs, results come in.

    Use it in a ``with`` block, or call `close` at the end. Attributes and figures raise the errors of the client:
    TryAgainError if the store or the service is out of reach.
    """

    def __init__(self, client: SearchClient, identity: str, place: Place) -> None:
        """Finds the search.

        Args:
            client: client of the store or the service.
            identity: the search's name or number.
            place: place of the search, for the commands in messages.

        Raises:
            InputError: there is no such search, or it is a family of several searches.
        """
        self._client = client
        self._place = place
        status = client.status(identity)
        self._search = search_of(status)
        self._identity = str(status["id"])
        #: The search's name.
        self.name: str = status["name"]

    # --- definition, state and results ---

    @property
    def definition(self) -> Search:
        """The definition of the search: space, objective, optimizer, budget, payload."""
        return self._search

    @property
    def status(self) -> StatusDocument:
        """The status document, as printed by `hpo-pilot status --json`."""
        return self._client.status(self._identity)

    @property
    def state(self) -> str:
        """Its state: `submitted`, `running`, `paused`, `done`, `stopped` or `failed`."""
        return self.status["state"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial as a dictionary (`number`, `point`, `value`, `std`, …); None if there is none yet.

        Raises:
            InputError: the search has several objectives, and so no single best trial; see `front`.
        """
        found = self._client.best(self._identity)
        if isinstance(found, list) or len(self._search.objectives) > 1:
            raise InputError(f"search {self.name!r} has several objectives and so no best trial: look at .front")
        return None if found is None else dict(found)

    @property
    def recommended(self) -> RecommendationDocument | None:
        """The trial that is probably the best although results are noisy; see `SearchClient.recommend`."""
        return self._client.recommend(self._identity)

    @property
    def front(self) -> pd.DataFrame:
        """The Pareto front, sorted by the first objective; with one objective, only the best trial."""
        found = self._client.best(self._identity)
        listed = found if isinstance(found, list) else [] if found is None else [found]
        return trials_frame(self._search, listed)

    @property
    def trials(self) -> pd.DataFrame:
        """All trials; see `hpo_pilot.report.frames.trials_frame`."""
        return trials_frame(self._search, self._documents())

    @property
    def folds(self) -> pd.DataFrame:
        """All folds of all trials, with the metrics of the payload."""
        return folds_frame(self._search, self._documents())

    @property
    def intermediate(self) -> pd.DataFrame:
        """Intermediate values that trials reported while they ran."""
        return intermediate_frame(self._client.intermediate(self._identity))

    def _documents(self) -> list[TrialDocument]:
        return list(self._client.trials(self._identity, logs=False))

    def watch(self, figure: str = "convergence") -> None:
        """Shows the progress until the search is over: a bar and a live figure in a notebook, lines in a script.

        An interrupt (the notebook's stop button, Ctrl-C) stops only the display; the search continues.

        Args:
            figure: ``convergence``, ``front``, ``distribution`` or ``curves``.

        Raises:
            InputError: the figure is none of these.
        """
        if figure not in SVG_KINDS:
            raise InputError(f"figure {figure!r} cannot be watched; the figures for it are {', '.join(SVG_KINDS)}")
        show_progress(self._client.watch(self._identity), live_figure(self._client, figure))

    def report(self) -> str:
        """Returns the report: one self-contained HTML document."""
        return self._client.report(self._identity)

    def close(self) -> None:
        """Closes the connection to the store or the service."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- figures ---

    def plot_convergence(self) -> go.Figure:
        """Results in order of arrival and the best so far; also the best so far of other searches in the same space."""
        return self._plot("convergence")

    def plot_front(self) -> go.Figure:
        """The Pareto front of a search with several objectives; with more than two, of the first two."""
        return self._plot("front")

    def plot_parallel(self) -> go.Figure:
        """Parallel coordinates: each trial is a line over one axis per parameter; drag on an axis to select trials."""
        return self._plot("parallel")

    def plot_importance(self, method: Literal["permutation", "ped-anova"] = "permutation") -> go.Figure:
        """Importance of each parameter; with several objectives, for the first.

        Args:
            method: ``permutation``: to a model of all results, with its uncertainty; ``ped-anova``: for being among the
                best tenth.

        Raises:
            InputError: there is no such method.
        """
        methods = ("permutation", "ped-anova")
        if method not in methods:
            raise InputError(f"there is no method {method!r} of importance; the methods are {' and '.join(methods)}")
        return self._plot("importance", methods.index(method))

    def plot_correlations(self) -> go.Figure:
        """Rank correlations (Spearman) of the figures of merit and the parameters, and of the parameters."""
        return self._plot("correlations")

    def plot_slices(self, parameter: str | None = None) -> go.Figure | list[go.Figure]:
        """The figure of merit against one parameter; without a name, a list with one figure per parameter.

        Raises:
            InputError: there is no such parameter.
        """
        if parameter is None:
            return [_plotly_figure(figure) for figure in self._figures("slices")]
        if parameter not in self._search.space.names:
            raise InputError(f"there is no parameter {parameter!r}; there is {', '.join(self._search.space.names)}")
        found = [figure for figure in self._figures("slices") if figure.title == parameter]
        return _plotly_figure(found[0] if found else _empty_figure("slices", parameter))

    def plot_contours(self, *axes: str) -> list[go.Figure]:
        """The local mean of the figure of merit over two parameters; without names, over the most important ones.

        Raises:
            InputError: these are not two different parameters.
        """
        return [_plotly_figure(figure) for figure in self._figures("contours", axes)]

    def plot_ranks(self, *axes: str) -> list[go.Figure]:
        """The trials over two parameters, as `plot_contours`, in the colours of their ranks."""
        return [_plotly_figure(figure) for figure in self._figures("ranks", axes)]

    def plot_distribution(self) -> go.Figure:
        """The share of trials that are at least as good as a value; with several objectives, of the first."""
        return self._plot("distribution")

    def plot_timeline(self) -> go.Figure:
        """Results by date, and the best so far; with several objectives, of the first."""
        return self._plot("timeline")

    def plot_folds(self) -> go.Figure:
        """The spread of the folds of the best trials."""
        return self._plot("folds")

    def plot_curves(self) -> go.Figure:
        """Intermediate values of the trials, and the steps at which trials were stopped early."""
        return self._plot("curves")

    def plot_slots(self) -> go.Figure:
        """Time and place of each job; with too many jobs to draw, the numbers of running and waiting jobs."""
        found = self._figures("slots")
        return _plotly_figure(found[-1] if found else _empty_figure("slots", "Slots over time"))

    def plot_failures(self) -> list[go.Figure]:
        """Failed trials in the parameter space."""
        return [_plotly_figure(figure) for figure in self._figures("failures")]

    def _plot(self, key: str, place: int = 0) -> go.Figure:
        found = self._figures(key)
        titles = {kind.key: kind.title for kind in kinds(self._search)}
        return _plotly_figure(
            found[min(place, len(found) - 1)] if found else _empty_figure(key, titles.get(key, key.capitalize()))
        )

    def _figures(self, key: str, axes: Sequence[str] = ()) -> list[Figure]:
        check_axes(self._search, axes)
        return build(key, replace(figure_data_of(self._client, self._identity, keys=(key,)), axes=axes))

    # --- display in consoles and notebooks ---

    def __repr__(self) -> str:
        rows = "; ".join(f"{name}: {value}" for name, value in self._facts())
        return f"<search {self.name!r}; {rows}>"

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows: state, counts and the best point. All texts are escaped."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in self._facts()
        )
        return f"<table><caption>search {escape(self.name)}</caption><tbody>{rows}</tbody></table>"

    def _facts(self) -> list[tuple[str, str]]:
        status, advised = self.status, self._place.completed
        over, planned, failed = status["over"], status["planned"], status["trials"].get("failed", 0)
        facts = [
            ("state", status["state"] + (f" ({advised(status['message'])})" if status["message"] else "")),
            ("trials", f"{whole(over)} of {whole(planned)} over, {whole(failed)} failed"),
        ]
        if best := status["best"]:
            facts.append((f"best {self._search.objective.metric}", f"{best_text(best)} (trial {best['number']})"))
            facts += [(name, scalar(value)) for name, value in best["point"].items()]
        if front := status.get("front"):
            facts.append(("front", front_text(len(front["trials"]), front["hypervolume"])))
        if is_unsteered(status):
            commands = advised(self._client.how_to_steer(self._identity))
            facts.append(("steering", f"nothing steers it now: {commands}"))
        elif status["state"] not in OVER_SEARCHES:
            facts.append(("next", ".watch() shows its progress"))
        return facts


def _plotly_figure(figure: Figure) -> go.Figure:
    import plotly.graph_objects as go  # noqa: PLC0415 - takes a second to load

    # No template: a notebook's theme would replace our colours, which have a meaning.
    return go.Figure({**plotly_spec(figure, title=True)})


def _empty_figure(key: str, title: str) -> Figure:
    return message_figure(key, title, "There is nothing to draw yet.")


def live_figure(client: SearchClient, key: str = "convergence") -> Callable[[ProgressDocument], str]:
    """Returns a function that draws a figure of a search in progress as HTML; empty while there is nothing to draw."""

    def draw(now: ProgressDocument) -> str:
        keys = ("curves",) if key == "curves" else ()
        return "".join(map(figure_svg, build(key, figure_data_of(client, str(now["id"]), keys=keys))[:1]))

    return draw


def show_progress(news: Iterable[ProgressDocument], draw: Callable[[ProgressDocument], str] | None = None) -> None:
    """Shows each progress document: in Jupyter it replaces the previous one, elsewhere it is a new line of text.

    An interrupt (Ctrl-C) ends it without an error.

    Args:
        news: the documents.
        draw: returns a figure as HTML, for Jupyter.
    """
    display = ProgressDisplay(sys.stdout, draw=draw)
    try:
        for now in news:
            display(now)
    except KeyboardInterrupt:
        sys.stdout.write("no longer watching; the search continues\n")


class ProgressDisplay:
    """Shows the progress of a search: as a bar in Jupyter, elsewhere as lines of text."""

    def __init__(
        self, stream: TextIO, *, seconds: float = 0.0, draw: Callable[[ProgressDocument], str] | None = None
    ) -> None:
        """Prints lines to `stream`, at most one in `seconds`, but also one for each tenth of the budget and the end.

        `draw` returns a figure as HTML, which Jupyter shows under the bar.
        """
        self._stream, self._seconds, self._draw = stream, seconds, draw
        self._figure, self._drawn, self._next = "", 0, 0.0
        self._display = _jupyter()
        self._handle: Any = None
        self._line, self._tenth, self._due = "", -1, 0.0
        self._failures: set[str] = set()

    def __call__(self, now: ProgressDocument) -> None:
        """Shows the present progress, and the first failure for each reason."""
        for failure in now.get("failures", ()):
            if failure["error"] not in self._failures:
                self._failures.add(failure["error"])
                self.say(f"{now['name']}: trial {failure['trial']} failed: {' '.join(failure['error'].split())}")
        if self._display is not None:
            bar = _ProgressBar(now, self._figure_at(now))
            if self._handle is None:
                self._handle = self._display(bar, display_id=True)
            else:
                self._handle.update(bar)
            return
        line, tenth = progress_line(now), 10 * now["over"] // max(1, now["total"])
        is_due = tenth != self._tenth or time.monotonic() >= self._due or now["state"] in OVER_SEARCHES
        if line != self._line and is_due:
            self.say(line)
            self._line, self._tenth, self._due = line, tenth, time.monotonic() + self._seconds

    def _figure_at(self, now: ProgressDocument) -> str:
        """Returns the figure, drawn again for new results, but for no more than a twentieth of the time."""
        begun, over = time.monotonic(), now["over"]
        is_due = begun >= self._next or now["state"] in OVER_SEARCHES
        if self._draw is not None and over != self._drawn and is_due:
            with suppress(HpoPilotError):  # such as a store that is out of reach: progress and search go on
                self._figure, self._drawn = self._draw(now), over
            self._next = begun + 20 * (time.monotonic() - begun)
        return self._figure

    def say(self, text: str) -> None:
        """Prints a line."""
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()


def progress_line(now: ProgressDocument) -> str:
    """Returns the progress of a search as one line of text."""
    steering = ", nothing steers it now" if is_unsteered(now) else ""
    over = f"{whole(now['over'])} of {count(now['total'], 'trial')}"
    return f"{now['name']}: {now['state']}{steering}, {over}, {result_text(now)}"


class _ProgressBar:
    """Progress for Jupyter: a bar, a line of text and a figure; only the line where HTML cannot be shown."""

    def __init__(self, now: ProgressDocument, figure: str) -> None:
        self._line, self._figure = progress_line(now), figure
        self._over, self._total = now["over"], max(1, now["total"])

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        label = escape(self._line)
        return (
            f'<div><progress value="{self._over}" max="{self._total}" style="width:20em" aria-label="{label}">'
            f"</progress> {label}{self._figure}</div>"
        )


def _jupyter() -> Any:
    """Returns IPython's `display` in a Jupyter kernel, which can update output; None in a terminal or a script."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython  # noqa: PLC0415 - an extra
    from IPython.display import display  # noqa: PLC0415 - as above

    shell = get_ipython()
    return display if shell is not None and hasattr(shell, "kernel") else None


# --- from documents to searches and trials ---


def figure_data_of(
    client: SearchClient, identity: str, *, keys: Collection[str] = ("curves", "convergence")
) -> FigureData:
    """Reads the data for the figures of a search.

    Args:
        client: client of the store or the service.
        identity: the search's name or number.
        keys: kinds of figures to draw; data that only other kinds need are not read.

    Raises:
        InputError: it is a family of several searches. Errors of the client are raised, too.
    """
    status = client.status(identity)
    search = search_of(status)
    return FigureData(
        search,
        [trial_of(document) for document in client.trials(identity, logs=False)],
        reports_of(client.intermediate(identity)) if "curves" in keys else {},
        peers_of(client, status, search) if "convergence" in keys else (),
        time_of(status["ended"]),
    )


def search_of(status: StatusDocument) -> Search:
    """Returns the search in a status document.

    Raises:
        InputError: it is a family of several searches.
    """
    if "segments" in status:
        names = ", ".join(str(segment["name"]) for segment in status["segments"])
        raise InputError(f"{status['name']} is a family of searches; name one of them: {names}")
    return Search.model_validate(status["definition"])


def peers_of(client: SearchClient, status: StatusDocument, search: Search) -> list[PeerSearch]:
    """Returns the latest other searches with the same objective and space that have a result, oldest first.

    Looks at the latest 100 with the same objective, because each may be a call to a service.
    """
    alike = [
        other
        for other in client.searches(costs=False)
        if other["id"] != status["id"] and other["best"] is not None and other["objective"] == status["objective"]
    ]
    peers: list[PeerSearch] = []
    for other in alike[:-101:-1]:
        if len(peers) == PEER_LIMIT:
            break
        definition = search_of(client.status(str(other["id"])))
        if same_question(search, definition):
            peers.append(
                PeerSearch(
                    other["name"], definition, [trial_of(one) for one in client.trials(str(other["id"]), logs=False)]
                )
            )
    return peers[::-1]


def reports_of(documents: Sequence[IntermediateDocument]) -> Reports:
    """Returns the intermediate values from their documents; a missing value (null) becomes infinity."""
    return {
        document["number"]: {
            fold["fold"]: [(step, math.inf if value is None else value) for step, value in fold["values"]]
            for fold in document["folds"]
        }
        for document in documents
    }
