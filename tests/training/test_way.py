"""How many files of training/ one eval crosses: docs/architecture.md says which, and why."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import heldout.training
from heldout.training import AsyncEvalDispatcher
from tests.test_architecture import TRAINING
from tests.training.toys import Rows, periodic, weighted

HOME = str(Path(heldout.training.__file__).parent)


class Way:
    """The files of training/ that are entered while it is `on`, in all threads, and from where."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[tuple[str | None, str]] = Counter()
        """By the file that calls, or its caller outside of training/, and the file called."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        called = self._file(frame)
        if not self.on or event != "call" or called is None:
            return
        above, caller = frame.f_back, None
        while above is not None:
            if above.f_code.co_name == "<module>" and "importlib" in self._where(above.f_back):
                return  # what an import runs is not the way of an eval
            caller = caller or self._file(above)
            above = above.f_back
        self.calls[caller, called] += 1

    @property
    def files(self) -> set[str]:
        return {called for _, called in self.calls}

    @property
    def ups(self) -> set[tuple[str, str]]:
        """Calls of what stands above the caller: callbacks, in the order of test_architecture."""
        made = {(caller, called) for caller, called in self.calls if caller is not None}
        return {(low, high) for low, high in made if self._place(high) > self._place(low)}

    def _file(self, frame: FrameType) -> str | None:
        name = self._where(frame)
        if frame.f_code.co_name == "<module>" or not name.startswith(HOME):
            return None
        return name.removeprefix(HOME).lstrip("/")

    def _where(self, frame: FrameType | None) -> str:
        return "" if frame is None else frame.f_code.co_filename

    def _place(self, file: str) -> int:
        return TRAINING.index(file.partition("/")[0].removesuffix(".py"))


@pytest.fixture
def way() -> Iterator[Way]:
    before, made = sys.getprofile(), Way()
    sys.setprofile(made)
    threading.setprofile(made)
    yield made
    made.on = False
    threading.setprofile(None)  # type: ignore[arg-type]
    sys.setprofile(before)


def second_eval(way: Way, run: Callable[[int], object], *, settle: Callable[[], object]) -> None:
    """Follow the second eval: the first one imports, and has no point before it."""
    run(10)
    settle()
    way.on = True
    run(20)
    settle()
    way.on = False


def test_an_inline_eval_goes_down_nine_files_and_is_not_called_back(
    tmp_path: Path, way: Way
) -> None:
    evals = periodic(tmp_path, weighted())
    second_eval(way, evals.maybe_run, settle=lambda: None)
    assert [point.step for point in evals.points if point.has_result] == [10, 20]
    assert len(way.files) <= 9, sorted(way.files)
    assert way.ups == set()


def test_a_background_eval_crosses_fourteen_files_and_calls_back_what_it_was_given(
    tmp_path: Path, way: Way
) -> None:
    with AsyncEvalDispatcher(loggers=[Rows()]) as dispatcher:
        evals = periodic(tmp_path, weighted())
        second_eval(way, evals.maybe_run, settle=dispatcher.drain)
    assert [point.step for point in evals.points if point.has_result] == [10, 20]
    assert len(way.files) <= 14, sorted(way.files)
    assert way.ups == {
        ("measuring.py", "background/jobs.py"),  # whether anybody still waits for its result
    }
