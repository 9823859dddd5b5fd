"""One `eval_async` of Inspect, to which samples are added while it runs.

Inspect allows one `eval_async` at a time in a process, so all of them run one after another in one
event loop, in a thread of its own: whatever loops and threads heldout's runs have, and however
often they change, Inspect sees one. A session begins with the first sample, and ends when there was
none for a moment.

A sample's solvers ask `PolicyAPI` (policy.py), which passes the question to the item's conversation
in the loop of its run, and waits for the policy's turn.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from inspect_ai import SampleSource, enqueue_sample, eval_async, task_with
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import scorer
from inspect_ai.solver import solver
from inspect_ai.util import LimitExceededError, display_type, registry_info

from heldout._core.current_attempt import add_other_usage, waiting_for_others
from heldout._core.loop_thread import LoopThread
from heldout._core.temporary import TemporaryFolder
from heldout.adapters.inspect.metrics import ScorerRules, rules_of
from heldout.adapters.inspect.policy import POLICY, UNLIMITED, InspectItem, PolicyAPI, PolicyModel
from heldout.environments.driven import Driven, DrivenConversation
from heldout.errors import EnvironmentFailed
from heldout.types import Usage

IDLE_SECONDS = 0.5
"""How long a session waits for another sample."""
END_SECONDS = 10.0
"""How long samples whose items have ended may take to end, too."""
_CONFIG = GenerateConfig(max_connections=UNLIMITED)
# --- The event loop -----------------------------------------------------------------------------

_inspect = LoopThread("heldout-inspect")
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _one_at_a_time() -> asyncio.Lock:
    """Return the lock of this loop: one that a dead thread held would never be free again."""
    return _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


# --- One item -----------------------------------------------------------------------------------


class InspectEnvironment(Driven):
    """One attempt at a sample of an Inspect task, as an environment."""

    def __init__(self, sample: Any, sessions: InspectSessions) -> None:
        super().__init__(self._begin, self._end, _limit_error)
        self._sample, self._sessions = sample, sessions
        self._item: InspectItem | None = None
        self._session: InspectSession | None = None

    async def _begin(self, conversation: DrivenConversation) -> None:
        loop = asyncio.get_running_loop()
        self._item = InspectItem(copy.deepcopy(self._sample), conversation, loop)
        self._session = self._sessions.add(self._item)
        with waiting_for_others():  # Inspect may be running another eval of this process
            await asyncio.shield(asyncio.wrap_future(self._session.begun))

    def _end(self) -> None:
        if self._item is not None and self._session is not None:
            self._session.remove(self._item)

    async def outcome(self) -> dict[str, Any]:
        """Return the scores, and count what graders took."""
        outcome = await super().outcome()
        for model, (prompt, completion) in outcome.pop("other_usage").items():
            add_other_usage("judge", model, Usage(prompt, completion))
        return outcome


def _limit_error() -> Exception:
    message = "heldout's limit of turns or tokens is reached"
    return LimitExceededError("custom", value=1, limit=1, message=message)  # type: ignore[no-any-return]


# --- The session --------------------------------------------------------------------------------


class InspectSessions:
    """The sessions of a task, one after another."""

    def __init__(self, task: Any, model_roles: Mapping[str, Any]) -> None:
        self._task, self._model_roles = task, model_roles
        self._session: InspectSession | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[Any, Any]:
        return self._task, self._model_roles

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def add(self, item: InspectItem) -> InspectSession:
        """Have an item run in the session there is, or in a new one."""
        with self._lock:
            if self._session is None or not self._session.add(item):
                self._session = InspectSession(self._task, self._model_roles)
                self._session.add(item)
                self._session.start()
            return self._session

    async def end(self) -> None:
        """End the session and wait until it has, unless another run uses it."""
        if self._session is not None:
            await self._session.end()


class InspectSession(SampleSource):  # type: ignore[misc]
    """One `eval_async`. Its methods `add`, `remove` and `start` are called from any thread."""

    def __init__(self, task: Any, model_roles: Mapping[str, Any]) -> None:
        self._task, self._model_roles = task, model_roles
        self._loop = _inspect.get()
        self._lock = threading.Lock()
        self._has_ended = self._ends_when_idle = False
        self.begun: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when it is its turn, or when it has ended before."""
        self._over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._queued: list[InspectItem] = []
        """Items that Inspect was not given yet."""
        self._in_flight = 0
        self._news = asyncio.Event()
        self._wake = asyncio.Event()
        """Set when there is something for `next_samples` to return for."""
        self._running: asyncio.Task[None] | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._epochs: Counter[str] = Counter()
        self._items: dict[tuple[str, int], InspectItem] = {}
        self._logging = _LoggingState()
        self._rules = rules_of(task, scorer_names(task.scorer))

    def start(self) -> None:
        """Start it in Inspect's loop, in a context that knows nothing of the caller's."""
        context = contextvars.Context()
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._run()), context=context)

    def add(self, item: InspectItem) -> bool:
        """Add an item; False where the session has ended."""
        with self._lock:
            if self._has_ended or not _inspect.is_current(self._loop):
                return False
            self._queued.append(item)
            self._in_flight += 1
        self._loop.call_soon_threadsafe(self._news.set)
        return True

    def remove(self, item: InspectItem) -> None:
        """Say that an item has ended; its code is ended, too."""
        with self._lock:
            self._in_flight -= 1
        with suppress(RuntimeError):  # Inspect's loop is closed, and the item has ended with it
            self._loop.call_soon_threadsafe(self._end_item, item)

    async def end(self) -> None:
        """End it now if no item is in flight, and wait until it has ended."""
        if not _inspect.is_current(self._loop):
            return  # its thread has ended, and it with it
        with self._lock:
            if self._in_flight:
                return
            self._ends_when_idle = True
        self._loop.call_soon_threadsafe(self._news.set)
        # Not for ever: code that blocks Inspect's loop cannot be cancelled.
        await asyncio.wait({asyncio.wrap_future(self._over)}, timeout=2 * END_SECONDS)

    def _end_item(self, item: InspectItem) -> None:
        item.cancel()
        self._news.set()

    async def _run(self) -> None:
        problem: BaseException | None = None
        self._running = asyncio.current_task()
        try:
            async with _one_at_a_time():
                self.begun.set_result(None)
                with TemporaryFolder("inspect") as folder:
                    logs = await self._evaluate(folder)
            if logs[0].error is not None:
                problem = EnvironmentFailed(f"Inspect ended its eval: {logs[0].error.message}")
        except BaseException as raised:  # noqa: BLE001 - it is the error of each item that is left
            problem = raised
        finally:
            self._logging.restore()
            if self._feeding is not None:
                self._feeding.cancel()
            with self._lock:
                self._has_ended = True
                left = [*self._items.values(), *self._queued]
            text = f"Inspect's eval has ended: {problem}" if problem else "Inspect's eval has ended"
            for item in left:
                item.fail(EnvironmentFailed(text))
            if not self.begun.done():
                self.begun.set_result(None)
            self._over.set_result(None)

    async def _evaluate(self, folder: str) -> Any:
        _show_nothing()
        policy = PolicyModel(PolicyAPI(self._task.token_limit is not None), _CONFIG)
        return await eval_async(
            _drive_task(self._task, self, policy),
            model=policy,
            model_roles=dict(self._model_roles),
            log_dir=folder,
            log_level="error",
            log_samples=False,
            log_realtime=False,
            max_samples=UNLIMITED,
            epochs=1,
            fail_on_error=False,
            score_on_error=False,
            retry_on_error=0,
            ctl_server=False,
        )

    # --- What Inspect calls, in its loop ---

    async def next_samples(self) -> list[Any] | None:
        """Wait until there is a sample, or no more. Asked only when none is in flight."""
        if self._feeding is None:
            self._logging.restore()
            # It inherits this context, in which samples can be added.
            self._feeding = asyncio.create_task(self._feed())
        await self._wake.wait()
        self._wake.clear()
        return None if self._has_ended else []

    async def _feed(self) -> None:
        while True:
            with suppress(TimeoutError):
                idle = 0.0 if self._ends_when_idle else IDLE_SECONDS
                async with asyncio.timeout(None if self._in_flight else idle):
                    await self._news.wait()
            self._news.clear()
            with self._lock:
                added, self._queued = self._queued, []
                self._has_ended = not added and not self._in_flight
            for item in added:
                self._enqueue(item)
            self._wake.set()
            if self._has_ended and self._running is not None:
                # What does not end by itself would keep the next session waiting.
                await asyncio.sleep(END_SECONDS)
                self._running.cancel()
                return

    def _enqueue(self, item: InspectItem) -> None:
        if item.has_ended:
            return
        key = str(item.sample.id)
        self._epochs[key] += 1
        item.epoch = self._epochs[key]
        self._items[key, item.epoch] = item
        enqueue_sample(item.sample, epoch=item.epoch)

    def find(self, sample_id: Any, epoch: int) -> InspectItem:
        """Return the item of a sample that runs."""
        return self._items[str(sample_id), epoch]

    async def sample_complete(self, sample: Any) -> None:
        """Say what came of a sample."""
        item = self._items.pop((str(sample.id), sample.epoch))
        if sample.error is not None:
            item.fail(EnvironmentFailed(f"{sample.error.message}"[:2000]))
        else:
            item.finish(_describe_result(sample, item, self._rules))

    async def sample_abandoned(self, sample: Any, epoch: int) -> None:
        """Say that a sample was never run."""
        item = self._items.pop((str(sample.id), epoch))
        item.fail(EnvironmentFailed("Inspect has abandoned the sample"))


def _describe_result(
    sample: Any, item: InspectItem, rules: Mapping[str, ScorerRules]
) -> dict[str, Any]:
    scores = {}
    for name, score in sample.scores.items():
        scores[name] = {
            "value": _plain(score.value),
            "answer": score.answer,
            "explanation": score.explanation,
            "reason": score.reason,
        }
        if name in rules and (numbers := rules[name].read(score.value)):
            scores[name]["numbers"] = numbers
    limit = sample.limit and {"type": sample.limit.type, "limit": sample.limit.limit}
    others = {
        model: (usage.input_tokens, usage.output_tokens)
        for model, usage in (sample.model_usage or {}).items()
        if model != POLICY
    }
    return {
        "scores": {**dict.fromkeys(item.missing), **scores},
        "limit": limit,
        "ignored_settings": item.ignored,
        "other_usage": others,
    }


def _plain(value: Any) -> Any:
    """Return a score's value as JSON values; what JSON has no number for as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | bool | int | float | None) else repr(value)[:200]


# --- The task, driven ---------------------------------------------------------------------------


def _drive_task(task: Any, session: InspectSession, policy: Any) -> Any:
    """Make a copy of the task that takes its samples from the session and asks the policy."""
    driven = copy.copy(task)
    # Inspect would change the directory of the whole process to the task's for a moment.
    vars(driven).pop("__task_run_dir__", None)
    setup = task.setup or []
    return task_with(
        driven,
        dataset=session,
        setup=[_drive_solver(s, session) for s in (setup if _is_list(setup) else [setup])],
        solver=_drive_solver(task.solver, session),
        scorer=[
            _drive_scorer(inner, name, session)
            for inner, name in zip(task.scorer, scorer_names(task.scorer), strict=True)
        ],
        model=policy,
        epochs=1,
        metrics=None,
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence)


@solver(name="heldout_driven")  # type: ignore[untyped-decorator]
def _drive_solver(inner: Any, session: InspectSession) -> Any:
    """Run a solver as part of its item."""

    async def solve(state: Any, generate: Any) -> Any:
        with session.find(state.sample_id, state.epoch).running():
            return await inner(state, generate)

    return solve


def scorer_names(scorers: Sequence[Any]) -> list[str]:
    """Return the names that the scores of scorers have; Inspect numbers those that are taken."""
    names: list[str] = []
    for each in scorers:
        base = str(registry_info(each).name).rpartition("/")[2]
        numbered = (f"{base}{number or ''}" for number in count())
        names.append(next(name for name in numbered if name not in names))
    return names


def _drive_scorer(inner: Any, name: str, session: InspectSession) -> Any:
    """Run a scorer as part of its item, and without metrics: the summary is heldout's.

    Some metrics draw from numpy's global random numbers, and one that raises would end the eval.
    """

    @scorer(metrics=[], name=name)  # type: ignore[untyped-decorator]
    def drive() -> Any:
        async def score(state: Any, target: Any) -> Any:
            item = session.find(state.sample_id, state.epoch)
            with item.in_scorer():
                result = await inner(state, target)
            if result is None:
                item.missing.append(name)
            return result

        return score

    return drive()


# --- Inspect's own side effects -----------------------------------------------------------------


def _show_nothing() -> None:
    """Choose no display, unless one was chosen; it is read from the environment once."""
    before = os.environ.get("INSPECT_DISPLAY")
    os.environ["INSPECT_DISPLAY"] = before or "none"
    display_type()
    if before is None:
        del os.environ["INSPECT_DISPLAY"]


class _LoggingState:
    """Levels and handlers of loggers that are not Inspect's, which it changes as it starts."""

    def __init__(self) -> None:
        self._levels = {name: logging.getLogger(name).level for name in ("httpx", "httpx2")}
        root = logging.getLogger()
        self._root_level, self._handlers = root.level, [*root.handlers]
        self._is_restored = False

    def restore(self) -> None:
        """Undo what Inspect has changed, once: later changes are the user's."""
        if self._is_restored:
            return
        self._is_restored = True
        root = logging.getLogger()
        for handler in [*root.handlers]:
            if handler not in self._handlers and type(handler).__module__.startswith("inspect_ai"):
                root.removeHandler(handler)
        root.setLevel(self._root_level)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
