"""The evals of one `PeriodicEval` that run beside the training, and what comes back from them.

They are measured on a snapshot of the weights, in a thread. What is said of them to functions of
the user (heartbeat, monitor) waits for the thread that trains: those may draw random numbers, and
were never meant to be called by two threads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from heldout.errors import InvalidInput
from heldout.isolation import modules_of, untouched_random_state
from heldout.training import ending
from heldout.training.curve import CurvePoint
from heldout.training.curve_file import Home
from heldout.training.dispatcher import AsyncEvalDispatcher, Snapshot, get_async_eval_dispatcher
from heldout.training.pending import PendingEval, Scheduled
from heldout.training.results import Known
from heldout.training.run_eval import Elsewhere

if TYPE_CHECKING:
    from heldout.training.snapshot import SnapshotPool

log = logging.getLogger("heldout")


class Beside:
    def __init__(
        self, label: str, shadows: SnapshotPool | None, elsewhere: Elsewhere | None
    ) -> None:
        self._label, self._shadows, self._elsewhere = label, shadows, elsewhere
        self._under_way: list[Scheduled] = []
        self._said: deque[Callable[[], object]] = deque()
        self._warned: set[str] = set()
        self._tried: int | None = None
        """The model that a copy could be made of."""

    # --- May it run beside? ---

    def dispatcher(
        self, step: int, collect: Callable[[], object], together: bool
    ) -> AsyncEvalDispatcher | None:
        """The one that is in use, if any, once this thread, which trains, has done what evals need
        done in it. `together`: several processes evaluate, each its part."""
        dispatcher = get_async_eval_dispatcher()
        if dispatcher is None:
            if any(not getattr(one, "has_scheduled", True) for one in ending.living):
                self._warn_once(
                    "an AsyncEvalDispatcher is open, but not in use here; "
                    "`with use_async_eval_dispatcher(dispatcher):` around the training is missing"
                )
            return None
        if together:
            self._warn_once("processes that evaluate together cannot do so beside the training")
            return None
        dispatcher.note_step(step)
        dispatcher.on_visit(collect)
        dispatcher.visit()
        return dispatcher

    def copyable(self, getter: Callable[[], Any]) -> Any:
        """The model, if its weights can be copied; None where it has to be evaluated at once."""
        try:
            with untouched_random_state():
                live = getter()
        except Exception:  # noqa: BLE001 - it is asked again, and the reason becomes a skip
            return None
        if live is not None and not modules_of(live):
            self._warn_once(f"a {type(live).__name__} is no torch module whose weights are copied")
            return None
        if live is not None and self._elsewhere is None and self._tried != id(live):
            try:
                trial = self._pool().try_take(live, step=0)
                if trial is not None:
                    trial.release()
            except InvalidInput as problem:
                self._warn_once(f"there can be no copy of the model: {problem}")
                return None
            except Exception as problem:
                log.debug("no snapshot yet; the next try says why", exc_info=problem)
            else:
                self._tried = id(live)
        return live

    def _warn_once(self, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            log.warning("%s: training waits for evals: %s", self._label, why)

    # --- On their way ---

    def schedule(
        self,
        dispatcher: AsyncEvalDispatcher,
        home: Home,
        evaluator: Callable[[Any, Callable[[], bool]], CurvePoint | Known],
        pending: PendingEval,
        live: Any,
        *,
        must: bool,
    ) -> Scheduled:
        """`live` is the model in training; the evaluator gets a snapshot of it, and can ask whether
        it was given up on."""
        take = partial(self._taker(), live, step=pending.step)
        mine: list[Scheduled] = []

        def given_up() -> bool:
            return bool(mine) and mine[0].done()

        handle = dispatcher.schedule_at(
            home,
            lambda snapshot: evaluator(snapshot, given_up),
            pending,
            snapshot=take,
            must=must,
        )
        mine.append(handle)
        self._under_way.append(handle)
        return handle

    def _taker(self) -> Callable[..., Snapshot | None]:
        return self._pool().try_take if self._elsewhere is None else self._elsewhere.try_snapshot

    def _pool(self) -> SnapshotPool:
        if self._shadows is None:
            from heldout.training.snapshot import SnapshotPool

            self._shadows = SnapshotPool()
        return self._shadows

    @property
    def under_way(self) -> list[Scheduled]:
        return list(self._under_way)

    # --- Back ---

    def say(self, words: Callable[[], object]) -> None:
        """From any thread: to be called in the one that trains."""
        self._said.append(words)

    @property
    def has_news(self) -> bool:
        return bool(self._said) or any(handle.done() for handle in self._under_way)

    def collect(self) -> list[Scheduled]:
        """In the thread that trains: says what waits to be said; those that have ended."""
        while self._said:
            self._said.popleft()()
        ended = [handle for handle in self._under_way if handle.done()]
        for handle in ended:
            self._under_way.remove(handle)
        return ended
