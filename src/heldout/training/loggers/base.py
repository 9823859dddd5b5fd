"""What every logger builds on: the protocol, a thread per logger, and the fields of a result.

`CallableLogger` and `StdoutLogger`, which need no tracker, are here, too.

`Loggers` gives each logger its own thread and bounded queue. `Loggers.log` copies a result into
every queue and returns: it neither waits nor raises. A logger that raises loses that result; one
that hangs delays only its own results. Lost results are counted by reason, the first of each kind
is a warning, and `close` reports all of them.

A call that holds Python's global interpreter lock stops every thread; no queue helps against that.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol, TextIO, TypeVar, cast

from heldout._core.plugins import find_plugins, load_plugin
from heldout.errors import InvalidInput, printable_error

log = logging.getLogger("heldout")

SLOW_SECONDS = 120.0
"""A call of a logger that takes longer than this is a warning."""
CLOSE_SECONDS = 60.0
"""How long loggers may take to store queued results when they are closed."""
EXIT_SECONDS = 2.0
"""The same after Ctrl-C."""
MAX_TEXT = 2000
"""Characters of a text that are sent to a tracker."""
_SKIP_NUMBERS = ("skipped", "seconds", "lag_steps")

Fields = Mapping[str, float | int | bool | str | None]
"""A result as `heartbeat_fields` flattens it: `eval_reward`, `eval_n`, `lag_steps`…"""
V = TypeVar("V")


class Logger(Protocol):
    """A destination of results. Called from one thread, which is not the trainer's."""

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Store one result or skip. May raise and may be slow: `Loggers` handles both.

        Args:
            name: The eval.
            step: The step that the result belongs to. Steps come in any order.
            fields: The result, flat.
        """

    def close(self) -> None:
        """Store what is still buffered. Called once, after the last result."""


class LogsMetrics(Protocol):
    """A trainer's own logger, of the form that tinker-cookbook's and Lightning's have."""

    def log_metrics(self, metrics: dict[str, float], step: int, /) -> object:
        """Store the metrics of a step."""


@dataclass(frozen=True, slots=True)
class LoggerReport:
    """What one logger stored and lost.

    Attributes:
        logger: Its class.
        got: How many results it stored.
        lost: How many it did not store, by reason.
        problem: What went wrong when it was closed; stored results may then be lost.
    """

    logger: str
    got: int
    lost: dict[str, int]
    problem: str | None = None

    @property
    def n_lost(self) -> int:
        """Number of results that it did not store."""
        return sum(self.lost.values())

    @property
    def complete(self) -> bool:
        """Whether it stored every result."""
        return not self.lost and self.problem is None

    def __str__(self) -> str:
        line = f"{self.logger}: got {self.got}, lost {self.n_lost}"
        if self.lost:
            line += f" ({'; '.join(f'{n} × {reason}' for reason, n in self.lost.items())})"
        return f"{line}; {self.problem}" if self.problem else line


class LoggersReport(tuple[LoggerReport, ...]):
    """The reports of several loggers, in the order of `Loggers(...)`."""

    __slots__ = ()

    @property
    def complete(self) -> bool:
        """Whether every logger stored every result."""
        return all(report.complete for report in self)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


class Loggers:
    """Several loggers, none of which delays training or another logger.

    Args:
        loggers: Objects with `log(name, step, fields)` and `close()`, or `log_metrics(metrics,
            step)`; or names, such as "wandb", of heldout's own and of plugins.
        capacity: How many results may wait for one logger; further ones are dropped and counted.

    Raises:
        InvalidInput: One of them is not a logger, or `capacity` is below 1.
    """

    def __init__(self, *loggers: Logger | LogsMetrics | str, capacity: int = 1000) -> None:
        if capacity < 1:
            raise InvalidInput(f"capacity must be a whole number >= 1, got {capacity!r}")
        self._pid = os.getpid()
        self._closed = False
        self._threads = [_LoggerThread(logger, capacity) for logger in checked_loggers(loggers)]
        # What still waits when a script ends without close() would be lost without a word.
        atexit.register(self.close)

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Queue a result for every logger. Neither waits nor raises.

        Args:
            name: The eval.
            step: The step that the result belongs to.
            fields: The result, flat. Each logger gets a copy.
        """
        if os.getpid() != self._pid:  # no threads here, and locks may be held for ever
            message = "heldout: %s of step %s is not logged: this is a child of process %s"
            log.warning(message, name, step, self._pid)
            return
        for thread in self._threads:
            thread.put((name, step, dict(fields)))

    def close(self, timeout: float = CLOSE_SECONDS) -> LoggersReport:
        """Let every logger store its queued results, and close it. Does nothing in a forked child.

        Args:
            timeout: Seconds for all of them together. Results still queued then are lost and
                counted.

        Returns:
            One report per logger. Those that are not complete are also logged as warnings.
        """
        is_first = not self._closed and os.getpid() == self._pid
        if is_first:
            self._closed = True
            atexit.unregister(self.close)
            deadline = time.monotonic() + timeout
            for thread in self._threads:
                thread.start_closing()
            for thread in self._threads:
                thread.wait_closed(deadline, timeout)
        reports = LoggersReport(thread.report() for thread in self._threads)
        for report in reports:
            if is_first and not report.complete:
                log.warning("heldout: not every result was logged: %s", report)
        return reports

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # After Ctrl-C nobody wants to wait a minute for a tracker that hangs.
        is_brief = kind is not None and not issubclass(kind, Exception | SystemExit)
        self.close(EXIT_SECONDS if is_brief else CLOSE_SECONDS)


class _LoggerThread:
    """One logger, the results that wait for it, and the thread that hands them over."""

    def __init__(self, logger: Logger, capacity: int) -> None:
        self._logger, self._capacity = logger, capacity
        self._name = type(logger.wrapped if isinstance(logger, MetricsLogger) else logger).__name__
        # None ends the thread. The bound is checked in put(), so that None always fits.
        self._queue: queue.SimpleQueue[tuple[str, int, Fields] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = self._got = 0
        self._lost: Counter[str] = Counter()
        self._problem: str | None = None
        self._closing = self._abandoned = self._warned_of_slow = False
        self._call_started = math.inf
        self._thread = threading.Thread(target=self._run, name=f"heldout {self._name}", daemon=True)
        self._thread.start()

    def put(self, result: tuple[str, int, Fields]) -> None:
        """Queue a result, or drop and count it."""
        reason = None
        with self._lock:
            if self._closing:
                reason = "came after close"
            elif self._queue.qsize() >= self._capacity:
                reason = f"{self._capacity} others were waiting already"
            else:
                self._unfinished += 1
                self._queue.put(result)
            is_new = self._count_lost(reason)
        if is_new:
            self._warn_lost(reason)
        if not self._warned_of_slow and time.monotonic() - self._call_started > SLOW_SECONDS:
            self._warned_of_slow = True
            log.warning(
                "heldout: a call of %s has not returned for more than %g s; training and other "
                "loggers go on, and up to %d results wait for it",
                *(self._name, SLOW_SECONDS, self._capacity),
            )

    def start_closing(self) -> None:
        """Close the logger after what waits now."""
        with self._lock:
            self._closing = True
            self._queue.put(None)

    def wait_closed(self, deadline: float, timeout: float) -> None:
        """Wait until the logger is closed; at the deadline, count what it does not have."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            return
        with self._lock:
            self._abandoned = True
            if self._unfinished:
                reason = f"not stored {timeout:g} s after close (the first may have arrived)"
                self._lost[reason] += self._unfinished
            else:
                self._problem = (
                    f"close did not return in {timeout:g} s, so that some of what it got may not "
                    "be stored"
                )

    def report(self) -> LoggerReport:
        """Count what the logger got so far. Takes no lock: it works in a forked child, too."""
        return LoggerReport(self._name, self._got, dict(self._lost), self._problem)

    def _run(self) -> None:
        reasons: dict[str, str] = {}
        while (result := self._queue.get()) is not None and not self._abandoned:
            problem = reason = None
            self._call_started = time.monotonic()
            try:
                self._logger.log(*result)
            except BaseException as raised:  # noqa: BLE001 - counted; training must not be hurt
                problem = raised
                # By class, in the words of the first: messages often differ in a number only.
                reason = reasons.setdefault(type(raised).__name__, _describe(raised))
            self._call_started = math.inf
            with self._lock:
                if self._abandoned:
                    break  # counted as lost already
                self._unfinished -= 1
                self._got += reason is None
                is_new = self._count_lost(reason)
            if is_new:
                self._warn_lost(reason, problem)
        # An abandoned logger, too, should its call return: it may hold a file or a run.
        try:
            self._logger.close()
        except BaseException as problem:  # noqa: BLE001 - reported; training must not be hurt
            self._problem = self._problem or f"closing it failed ({_describe(problem)})"

    def _count_lost(self, reason: str | None) -> bool:
        """Count a lost result, holding the lock; whether it is the first for that reason."""
        if reason is None:
            return False
        self._lost[reason] += 1
        return self._lost[reason] == 1

    def _warn_lost(self, reason: str | None, problem: BaseException | None = None) -> None:
        """Log a warning, without holding the lock: a log handler may hang."""
        message = "heldout: %s failed to store a result: %s; more of this kind are only counted"
        log.warning(message, self._name, reason, exc_info=problem)


def checked_loggers(loggers: Iterable[Logger | LogsMetrics | str]) -> tuple[Logger, ...]:
    """Return a list of loggers; InvalidInput, with a hint, if something else is in it.

    A text names one of heldout's own or a plugin's, which is made.
    """
    if not isinstance(loggers, Iterable) or isinstance(loggers, str):
        raise InvalidInput(f"loggers must be a list: [logger], got {loggers!r:.100}")
    return tuple(map(_as_logger, loggers))


def _as_logger(logger: Any) -> Logger:
    hint = ""
    if isinstance(logger, str):
        logger = _find_logger(logger)()
    if isinstance(logger, type):
        hint = f". It is a class: make one, {logger.__name__}(…)"
    elif callable(getattr(logger, "log", None)) and callable(getattr(logger, "close", None)):
        return cast(Logger, logger)
    elif callable(getattr(logger, "log_metrics", None)):
        return MetricsLogger(logger)
    elif callable(logger):
        hint = ". CallableLogger(fn) makes one of a function"
    raise InvalidInput(
        "a logger has log(name, step, fields) and close(), or log_metrics(metrics, step), got "
        f"{logger!r:.100}{hint}"
    )


def _find_logger(name: str) -> Callable[[], Any]:
    """Return what makes the logger of a name, heldout's own or a plugin's."""
    registered = find_plugins("heldout.loggers")
    if name not in registered:
        known = ", ".join(sorted(registered))
        raise InvalidInput(f"there is no logger {name!r}; there are {known}")
    return load_plugin("heldout.loggers", name, registered[name])  # type: ignore[no-any-return]


def split_fields(fields: Fields) -> tuple[dict[str, float | int], dict[str, str]]:
    """Split a result into finite numbers, which trackers can plot, and texts.

    Names lose the prefix `eval_`; `step` and None are left out. A skip has `skipped` 1, and no
    score. `partial` is 1 if the result is over fewer samples, with `partial_reason`. Values that
    are neither finite numbers nor texts are named in `left_out`.
    """
    numbers: dict[str, float | int] = {}
    texts: dict[str, str] = {}
    left_out: list[str] = []
    for long_name, value in fields.items():
        name = long_name.removeprefix("eval_")
        if value is None or name == "step":
            continue
        if isinstance(value, str):
            texts[name] = _clean_text(value)
        elif isinstance(value, Real) and math.isfinite(value):
            numbers[name] = int(value) if isinstance(value, Integral) else float(value)
        else:
            left_out.append(f"{name}={value!r:.40}")
    if "partial" in texts:
        numbers["partial"], texts["partial_reason"] = 1, texts.pop("partial")
    if left_out:
        texts["left_out"] = _clean_text(", ".join(left_out))
    if numbers.get("skipped"):
        numbers = {name: numbers[name] for name in _SKIP_NUMBERS if name in numbers}
    else:
        numbers.pop("skipped", None)
    return numbers, texts


def with_prefix(name: str, fields: Mapping[str, V]) -> dict[str, V]:
    """Name fields `<name>/<field>`, as trackers group them."""
    return {f"{name}/{key}": value for key, value in fields.items()}


def one_line(text: str) -> str:
    """Escape line ends and terminal codes: a reason may quote a model's text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _clean_text(text: str) -> str:
    """Shorten it, and spell out lone surrogates, which no tracker can encode."""
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def _describe(problem: BaseException) -> str:
    message = " ".join(printable_error(problem).split())[:200]
    return one_line(f"{type(problem).__name__}: {message}")


# --- Results to a function, or as lines to read ---------------------------------------------------

_FIRST = ("reward", "reward_ci_low", "reward_ci_high", "pass_rate", "n")


class CallableLogger:
    """Calls a function with each result.

    Args:
        fn: Called as `fn(name, step, fields)`, with finite numbers and texts: `reward`, `n`…

    Raises:
        InvalidInput: `fn` is not callable.
    """

    def __init__(self, fn: Callable[[str, int, dict[str, float | int | str]], object]) -> None:
        if not callable(fn):
            raise InvalidInput(f"fn must be a function (name, step, fields), got {fn!r:.100}")
        self._fn = fn

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Call the function."""
        numbers, texts = split_fields(fields)
        self._fn(name, step, {**numbers, **texts})

    def close(self) -> None:
        """Nothing to do."""


class MetricsLogger:
    """Hands the numbers of each result to a trainer's own logger, as `<name>/<field>`.

    It is not closed: it is the trainer's, who logs to it after the last eval, too.

    Args:
        wrapped: The logger, with `log_metrics(metrics, step)`.
    """

    def __init__(self, wrapped: LogsMetrics) -> None:
        self.wrapped = wrapped

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Log the numbers: such loggers take no texts. A skip has `<name>/skipped` 1."""
        numbers, _ = split_fields(fields)
        self.wrapped.log_metrics(with_prefix(name, numbers), step)

    def close(self) -> None:
        """Nothing to do: the logger is the trainer's."""


class StdoutLogger:
    """Prints `rl_eval step 30: reward 0.75, n 24` or `rl_eval step 40: SKIPPED, reason: …`.

    Args:
        stream: A text stream; None is what `sys.stdout` is when a result comes.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Print one line, in one write: the trainer prints, too."""
        numbers, texts = split_fields(fields)
        parts = ["SKIPPED"] if numbers.pop("skipped", None) else []
        first = {key: numbers[key] for key in _FIRST if key in numbers}
        parts += [f"{key} {value:.6g}" for key, value in (first | numbers).items()]
        parts += [f"{key}: {text}" for key, text in texts.items()]
        line = one_line(f"{name} step {step}: {', '.join(parts) or 'nothing'}")
        stream = self._stream or sys.stdout
        stream.write(f"{line}\n")
        stream.flush()

    def close(self) -> None:
        """Nothing to do: the stream is the caller's."""
