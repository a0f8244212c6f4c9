"""When the tasks of a server that cannot tell of changes are looked at: seldom, more seldom while nothing happens."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

#: The pause between two looks at a task, in seconds: the first after something happened, and the longest.
INTERVAL = (10.0, 300.0)
_GROWTH = 1.5
#: Each pause is made longer or shorter by up to this share, so that many clients do not come at once.
_JITTER = 0.2

#: A task that looks unchanged is read whole all the same after so many seconds: for the states of running jobs, and
#: should a change ever go unseen.
WHOLE_SECONDS = 120.0


#: A task that waits is looked at about this often, in seconds: its owner wants to know why.
WAITING_SECONDS = 45.0

#: Looks at tasks that wait are that far apart, in seconds, however many tasks there are.
_WAITING_SPACING = 2.0

#: A task whose running jobs' values are wanted is looked at and read whole about this often, in seconds.
VALUES_SECONDS = 30.0


@dataclass
class _Watch:
    """One task.

    Attributes:
        face: what it looked like when it was last read whole.
        unready: something was about to come then, without which it looks no different.
        told: the numbers of the jobs whose verdicts have been handed on.
        due: when it is to be looked at; None: it was reported as due, and nobody has looked yet.
    """

    interval: float
    due: float | None
    face: Hashable = None
    unready: bool = False
    read: float = -1e9
    told: frozenset[int] = field(default_factory=frozenset)


class Watches:
    """The tasks of one server; from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, dice: random.Random | None = None) -> None:
        """Watches nothing yet.

        Args:
            clock: in seconds.
            dice: for the jitter.
        """
        self._clock = clock
        self._dice = dice or random.Random()  # noqa: S311 - it spreads calls, it hides nothing
        self._tasks: dict[int, _Watch] = {}
        self._lock = threading.Lock()
        self._woken = threading.Event()

    def begin(self, task_id: int) -> None:
        """The task was submitted, or touched by us: it changes soon."""
        with self._lock:
            watch = self._tasks.setdefault(task_id, _Watch(INTERVAL[0], None))
            watch.interval = INTERVAL[0]
            watch.due = self._clock() + self._jitter(watch.interval)

    def looked(
        self,
        task_id: int,
        face: Hashable,
        missing: Collection[int],
        *,
        values: bool = False,
        waits: bool = False,
    ) -> bool:
        """Notes a look at a task.

        Args:
            task_id: the task.
            face: what it looks like: whatever changes with it.
            missing: the jobs that the caller still has no verdict of.
            values: whether the values of running jobs are wanted, which do not show on the task.
            waits: whether the server makes no jobs of the task for now.

        Returns:
            Whether it must be read whole: it has changed, or the caller lacks what it was once told, or it is time.
        """
        now = self._clock()
        longest, whole = (VALUES_SECONDS, VALUES_SECONDS / 2) if values else (max(INTERVAL), WHOLE_SECONDS)
        with self._lock:
            if waits:
                longest = min(longest, max(WAITING_SECONDS, _WAITING_SPACING * len(self._tasks)))
            watch = self._tasks.setdefault(task_id, _Watch(INTERVAL[0], None))
            news = watch.face != face
            watch.interval = INTERVAL[0] if news else min(watch.interval * _GROWTH, longest)
            watch.due = now + self._jitter(watch.interval)
            return news or watch.unready or bool(watch.told & set(missing)) or now - watch.read > whole

    def read(self, task_id: int, face: Hashable, told: Collection[int], *, unready: bool = False) -> None:
        """Notes that a task was read whole.

        Args:
            task_id: the task.
            face: what it looked like before.
            told: the numbers of the jobs whose verdicts were handed on.
            unready: something was not ready yet, so that it must be read again.
        """
        with self._lock:
            watch = self._tasks.setdefault(task_id, _Watch(INTERVAL[0], None))
            watch.face, watch.unready, watch.read, watch.told = face, unready, self._clock(), frozenset(told)

    def wait(self, seconds: float) -> set[int]:
        """Waits until tasks are due, at most `seconds`; returns them, each once until it has been looked at."""
        end = self._clock() + seconds
        while not (due := self._take_due()) and (left := end - self._clock()) > 0:
            with self._lock:
                next_due = min((watch.due for watch in self._tasks.values() if watch.due is not None), default=end)
            # At most a second: a task that is begun meanwhile may be due earlier.
            if self._woken.wait(min(left, max(next_due - self._clock(), 0.01), 1.0)):
                self._woken.clear()
                break
        return due

    def _take_due(self) -> set[int]:
        now = self._clock()
        with self._lock:
            due = {task_id for task_id, watch in self._tasks.items() if watch.due is not None and watch.due <= now}
            for task_id in due:
                self._tasks[task_id].due = None
        return due

    def forget(self, task_id: int) -> None:
        """The task is over and read."""
        with self._lock:
            self._tasks.pop(task_id, None)

    def _jitter(self, seconds: float) -> float:
        return seconds * self._dice.uniform(1 - _JITTER, 1 + _JITTER)

    def wake(self) -> None:
        """Ends a wait that is under way at once; from a signal handler too."""
        self._woken.set()
