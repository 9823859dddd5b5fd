"""An eval in a process of its own: the same numbers, and nothing of it reaches the training."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from heldout import Sample
from heldout._live.rendering.chat_templates import ChatFormat
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.training.background.worker import client
from heldout.training.background.worker.client import EvalWorker, worker_environment
from heldout.training.background.worker.messages import INSIDE_WORKER, CallFunction, Ready, encode
from heldout.training.background.worker.server import build_policy, load_weights
from heldout.training.background.worker.weight_buffer import WeightBuffer, read_tensors
from heldout.training.curve.points import CurvePoint, pending_point
from heldout.training.measuring import Known, Measured, Task, measure
from heldout.training.ranks import Alone
from heldout.training.runner import describe_runner
from heldout.training.settings import TrainerSettings
from tests.processes import is_running, wait_until_ended
from tests.tiny_model import tiny_model
from tests.training import worker_policy
from tests.training.worker_policy import Network

pytestmark = pytest.mark.integration

POLICY = f"{worker_policy.__file__}:policy"
FAILURES = Path(worker_policy.__file__).with_name("worker_failures.py")
MODULE = "tests.training.worker_policy"
LONG = 60.0


def asked(*texts: str, truth: str | None = None) -> list[Sample]:
    return [
        Sample(f"s{place}", {"question": text}, truth or text) for place, text in enumerate(texts)
    ]


def read_sums(count: int = 8) -> list[Sample]:
    return asked(*map(str, range(count)))


class Asked:
    """A task, and what was asked of it on the way."""

    def __init__(self, home: Path, samples: list[Sample], **changes: Any) -> None:
        self.weights: list[str | None] = []
        self.functions: list[dict[str, Any]] = []
        self.seen: list[tuple[int, int]] = []
        settings: dict[str, Any] = {
            "step": 5,
            "samples": samples,
            "size": len(samples),
            "runner_builder": worker_policy.builder,
            "run_dir": home,
            "pass_threshold": 0.5,
            "seed": 3,
            "keep_going": self.keep_going,
            "history": self,
        }
        self._admit = changes.pop("admit", self.functions.append)
        self.task = Task(**{**settings, **changes})

    # As an EvalHistory.
    def admit(self, functions: dict[str, Any]) -> None:
        self._admit(functions)

    def known_at(self, step: int, weights: str | None, *, whole: bool) -> CurvePoint | None:
        self.weights.append(weights)
        return None

    def keep_going(self, done: int, total: int) -> bool:
        self.seen.append((done, total))
        return True


def evaluated(worker: EvalWorker, model: Any, task: Task) -> Any:
    slot = worker.try_snapshot(model, step=task.step)
    try:
        return worker.measure(task, slot)
    finally:
        slot.release()


def results(worker: EvalWorker, home: Path, *texts: str, knows: float = 4.0, **task: Any) -> Any:
    truth = task.pop("truth", None)
    samples = task.pop("samples", None) or asked(*texts, truth=truth)
    found = evaluated(worker, Network(knows), Asked(home, samples, **task).task)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def worker() -> Iterator[EvalWorker]:
    with EvalWorker(POLICY, environment={"OMP_NUM_THREADS": "1"}) as made:
        yield made


# --- The same numbers ---------------------------------------------------------------------------


def test_it_measures_what_is_measured_in_the_training_itself(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, _ = tiny_model()
    builder = worker_policy.tiny()[1]
    asking = Asked(tmp_path / "worker", asked(*(f"w{n} w{n + 3}" for n in range(6)), truth="w1"))
    with EvalWorker(f"{MODULE}:tiny", environment={"OMP_NUM_THREADS": "1"}) as worker:
        found = evaluated(worker, model, asking.task)
    here = Asked(tmp_path / "here", list(asking.task.samples), runner_builder=builder)
    expected = measure(here.task, model, Alone())
    assert isinstance(expected, Measured)
    assert found.skipped is None
    assert msgspec.json.encode(found.summary) == msgspec.json.encode(expected.summary)
    assert [r.trajectory.answer for r in found.results] == [
        r.trajectory.answer for r in expected.results
    ]
    assert len({r.trajectory.answer for r in found.results}) > 1
    assert found.weights == expected.weights == fingerprint(model)
    assert (found.asked, found.repeats, found.run) == (6, 1, "steps/00000005")
    assert found.decoding == expected.decoding
    assert (tmp_path / "worker" / "steps" / "00000005" / "results.jsonl.gz").is_file()


def test_it_asks_as_the_trainer_does_where_its_own_code_says_nothing(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    template = tokenizer.chat_template + "{% if mood %} {{ mood }}{% endif %}"
    asking = Asked(tmp_path, asked("w1 w2"))
    with EvalWorker(f"{MODULE}:open_ended", environment={"OMP_NUM_THREADS": "1"}) as worker:
        worker.trainer = TrainerSettings(3, ChatFormat(template, {"mood": "w9"}))
        found = evaluated(worker, model, asking.task)
    assert found.skipped is None
    assert found.decoding["prompt"].endswith("user w1 w2 assistant w9")
    assert asking.functions[0]["settings"]["max_tokens"] == 3
    assert asking.functions[0]["chat_template_of_trainer"]


def test_it_says_how_it_scores_before_anything_is_run(worker: EvalWorker, tmp_path: Path) -> None:
    asking = Asked(tmp_path, read_sums(2))
    evaluated(worker, Network(), asking.task)
    [functions] = asking.functions
    assert functions == describe_runner(worker_policy.builder(None))
    assert functions["score_fn"] == describe_callable(worker_policy.score)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (InvalidInput("another scorer"), "another scorer"),
        (OSError("the disk is gone"), "OSError: the disk is gone"),
    ],
)
def test_what_does_not_belong_on_the_curve_is_not_run(
    worker: EvalWorker, tmp_path: Path, problem: Exception, said: str
) -> None:
    def admit(functions: dict[str, Any]) -> None:
        raise problem

    assert results(worker, tmp_path, "1", admit=admit).skipped == said
    assert not (tmp_path / "steps").exists()
    assert results(worker, tmp_path, samples=read_sums(), size=3).asked == 3


def test_weights_are_those_of_the_snapshot_though_training_goes_on(
    worker: EvalWorker, tmp_path: Path
) -> None:
    model = Network(4.0)
    before = fingerprint(model)
    slot = worker.try_snapshot(model, step=5)
    with torch.no_grad():
        model.knows.fill_(7.0)
        model.seen.add_(1)
    asking = Asked(tmp_path, read_sums())
    found = worker.measure(asking.task, slot)
    assert found.summary["metric_right"] == 0.5
    assert asking.weights == [found.weights] == [before]
    slot.release()
    later = evaluated(worker, model, Asked(tmp_path, read_sums()).task)
    assert later.summary["metric_right"] == 7 / 8
    assert later.weights == fingerprint(model)


def test_weights_that_have_a_point_are_not_measured(worker: EvalWorker, tmp_path: Path) -> None:
    asking = Asked(tmp_path, read_sums())
    point = pending_point("a", 5)
    asking.known_at = lambda step, weights, *, whole: point
    assert evaluated(worker, Network(), asking.task) == Known(point)
    assert not (tmp_path / "steps").exists()


def test_snapshots_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with EvalWorker(POLICY) as worker:
        first, second = (worker.try_snapshot(Network(), step=step) for step in (1, 2))
        assert worker.try_snapshot(Network(), step=3) is None
        assert worker.say_full() == (
            "all 2 snapshots of the eval worker were in use (EvalWorker(snapshots=3) has one more)"
        )
        first.release()
        first.release()
        again = worker.try_snapshot(Network(), step=4)
        assert worker.try_snapshot(Network(), step=5) is None
        again.release()
        second.release()
    monkeypatch.setattr("heldout.training.background.worker.client.available_memory", lambda: 7)
    with EvalWorker(POLICY) as worker:
        first = worker.try_snapshot(Network(), step=1)
        assert worker.try_snapshot(Network(), step=2) is None
        assert "memory is tight for a second one (EvalWorker(snapshots=2)" in worker.say_full()
        first.release()
        worker.try_snapshot(Network(), step=3).release()


def test_global_state_of_the_training_is_untouched(worker: EvalWorker, tmp_path: Path) -> None:
    model = Network(4.0)
    before = (random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())
    found = evaluated(worker, model, Asked(tmp_path, asked("switch", "1")).task)
    assert found.skipped is None
    assert random.getstate() == before[0]
    now = np.random.get_state(legacy=False)
    assert all(np.array_equal(now["state"][k], v) for k, v in before[1]["state"].items())
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.get_float32_matmul_precision() == "highest"


# --- What goes wrong in it is data, or a skip ---------------------------------------------------


def test_odd_output_and_prints_do_not_break_it(worker: EvalWorker, tmp_path: Path) -> None:
    found = results(worker, tmp_path, "odd", "print", "1")
    assert found.skipped is None
    assert [r.ok for r in found.results][1:] == [True, True]


def test_a_score_function_that_raises_is_an_error_of_its_item(
    worker: EvalWorker, tmp_path: Path
) -> None:
    found = results(
        worker, tmp_path, samples=[*read_sums(2), Sample("bad", {"question": "1"}, "raises")]
    )
    assert [r.ok for r in found.results] == [True, True, False]
    assert "this cannot be scored" in (found.results[2].error or "")


def test_a_model_that_cannot_be_copied_is_refused_and_takes_no_slot(worker: EvalWorker) -> None:
    for model, said in ((None, "there is no model"), (object(), "a model with weights")):
        for _ in range(2):
            with pytest.raises(InvalidInput, match=said):
                worker.try_snapshot(model, step=1)


def test_another_model_than_the_workers_is_a_skip(worker: EvalWorker, tmp_path: Path) -> None:
    model = Network()
    model.more = torch.nn.Linear(1, 1)
    found = evaluated(worker, model, Asked(tmp_path, read_sums()).task)
    assert "the worker's has no more.bias, more.weight" in (found.skipped or "")


# --- Time ---------------------------------------------------------------------------------------


def test_time_that_is_up_makes_a_partial(worker: EvalWorker, tmp_path: Path) -> None:
    samples = asked("0", "1", "until-told", "3")
    found = results(worker, tmp_path, samples=samples, keep_going=lambda done, total: done < 2)
    assert [r.sample_id for r in found.results] == ["s0", "s1"]
    assert "time was up after 2 of 4 items" in found.partial
    assert results(worker, tmp_path, "1").skipped is None


def test_answers_that_were_given_up_on_are_not_taken_for_others(
    worker: EvalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(worker, tmp_path, "1")
    process = worker._process
    ours, theirs = Pipe()
    with ours, theirs:
        monkeypatch.setattr(process, "_connection", ours)
        for answer in (Ready(3, "old"), Ready(4, "new")):
            theirs.send_bytes(encode(answer))
        assert [process.receive(4) for _ in range(3)] == [None, Ready(4, "new"), None]


def test_a_worker_that_does_not_end_is_killed_with_all_it_started(
    worker: EvalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GRACE_SECONDS", 0.1)
    child = tmp_path / "child"
    results(worker, tmp_path, "1")
    pid = worker.pid
    samples = asked(f"child {child}", "block")
    found = results(
        worker, tmp_path, samples=samples, keep_going=lambda done, total: not child.exists()
    )
    assert "so it was killed" in found.skipped
    assert pid is not None
    assert not is_running(pid)
    wait_until_ended(int(child.read_text()))
    assert results(worker, tmp_path, "1").skipped is None


# --- The end of a worker ------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_a_skip_and_the_next_eval_has_another(
    worker: EvalWorker, tmp_path: Path
) -> None:
    admitted = threading.Event()

    def kill_it(done: int, total: int) -> bool:
        if admitted.is_set() and worker.pid is not None and is_running(worker.pid):
            os.kill(worker.pid, signal.SIGKILL)
        return True

    found = results(
        worker, tmp_path, "block", keep_going=kill_it, admit=lambda functions: admitted.set()
    )
    assert "was ended by SIGKILL" in found.skipped
    assert results(worker, tmp_path, "1").skipped is None


def test_a_worker_that_leaves_says_how_and_what_it_said_last(
    worker: EvalWorker, tmp_path: Path
) -> None:
    found = results(worker, tmp_path, "exit 7")
    assert "ended by itself, with exit code 7" in found.skipped
    assert found.skipped.endswith("about to leave")


def test_a_policy_that_leaves_is_a_skip_that_says_so(tmp_path: Path) -> None:
    with EvalWorker(f"{FAILURES}:leaves") as worker:
        found = results(worker, tmp_path, "1")
    assert "ended by itself, with exit code 1" in found.skipped
    assert found.skipped.endswith("no GPU")


def test_a_policy_that_fails_in_the_same_way_is_not_called_at_every_eval(tmp_path: Path) -> None:
    log, calls = tmp_path / "worker.log", []
    with EvalWorker(f"{FAILURES}:raises") as worker:
        for number in range(13):
            found = results(worker, tmp_path, "1")
            assert "RuntimeError: no weights to be had; see" in found.skipped
            assert found.skipped.endswith(f"; see {log}") or number
            assert worker.pid is None
            calls.append(log.read_text().count("one line before"))
    assert calls == [1, *[2] * 10, *[3] * 2]
    assert found.skipped.startswith("the eval worker was not started, after it had failed")
    assert found.skipped.count(str(log)) == 1
    assert log.read_text().startswith("one line before\nTraceback")
    assert f'File "{FAILURES}", line ' in log.read_text()


def test_what_a_runner_raises_is_in_the_log(worker: EvalWorker, tmp_path: Path) -> None:
    found = results(worker, tmp_path, "raise")
    assert "ArithmeticError: this cannot be answered" in found.skipped
    log = Path(found.skipped.rpartition("; see ")[2]).read_text()
    assert "Traceback" in log
    assert "ArithmeticError: this cannot be answered" in log


def test_a_worker_that_cannot_be_started_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    with monkeypatch.context() as patch, EvalWorker(POLICY) as own:
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        found = results(own, tmp_path, "1")
    assert "could not be started: FileNotFoundError" in found.skipped
    (tmp_path / "worker.log").unlink()
    (tmp_path / "worker.log").mkdir()
    with EvalWorker(POLICY) as own:
        found = results(own, tmp_path, "1")
    assert "could not be started: IsADirectoryError" in found.skipped
    assert opened() == before


def test_a_policy_that_takes_too_long_is_a_skip_and_one_that_may_yet_come_is_kept(
    tmp_path: Path,
) -> None:
    log = tmp_path / "worker.log"
    with EvalWorker(f"{FAILURES}:never") as worker:
        found = results(worker, tmp_path, "1", keep_going=lambda done, total: False)
        assert found.skipped == "time was up while the eval worker was starting"
        pid = worker.pid
        assert pid is not None
        assert is_running(pid)

        def keep_going(done: int, total: int) -> bool:
            if "godot" in log.read_text():
                worker._start_timeout = 0.001
            return True

        found = results(worker, tmp_path, "1", keep_going=keep_going)
        assert "was still starting after 0.001 s (start_timeout)" in found.skipped
        assert found.skipped.endswith("waiting for godot")
        assert not is_running(pid)
        assert worker.pid is None


def test_closing_ends_an_eval_that_is_under_way(tmp_path: Path) -> None:
    own = EvalWorker(f"{FAILURES}:never", snapshots=3)
    waiting = own.try_snapshot(Network(), step=4)
    assert waiting is not None
    started, found = threading.Event(), []

    def keep_going(done: int, total: int) -> bool:
        started.set()
        return True

    thread = threading.Thread(
        target=lambda: found.append(results(own, tmp_path, "1", keep_going=keep_going))
    )
    thread.start()
    assert started.wait(LONG)
    own.close()
    thread.join(LONG)
    assert "the eval worker was closed" in found[0].skipped
    own.close()
    with pytest.raises(InvalidInput, match="the eval worker was closed"):
        own.try_snapshot(Network(), step=5)
    late = own.measure(Asked(tmp_path, read_sums()).task, waiting)
    assert late.skipped == "the eval worker was closed"


# --- The end of the training --------------------------------------------------------------------

SCRIPT = """
import signal, sys, threading
from pathlib import Path
from heldout import Sample
from heldout.training.measuring import Task
from heldout.training.background.worker import EvalWorker
from tests.training import worker_policy

signal.signal(signal.SIGINT, signal.default_int_handler)
from types import SimpleNamespace
gate = Path(sys.argv[1]) / "gate"
worker = EvalWorker(f"{worker_policy.__file__}:policy")
slot = worker.try_snapshot(worker_policy.Network(4.0), step=5)
task = Task(
    step=5,
    samples=[Sample("a", {"question": "1"}), Sample("b", {"question": f"until {gate}"})],
    size=2,
    runner_builder=worker_policy.builder,
    run_dir=gate.parent,
    pass_threshold=0.5,
    seed=0,
    keep_going=lambda done, total: True,
    history=SimpleNamespace(
        admit=lambda functions: print(worker.pid, flush=True),
        known_at=lambda step, weights, whole: None,
    ),
)
found, ended = [], threading.Event()

def evaluate():
    found.append(worker.measure(task, slot))
    ended.set()

threading.Thread(target=evaluate, daemon=True).start()
try:
    ended.wait()
except KeyboardInterrupt:
    gate.touch()
    ended.wait()
print(found[0].skipped, found[0].asked, len(found[0].results), flush=True)
"""


def training(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(home)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def opened_by(process: str) -> list[str]:
    """Files that are open there: a worker has its log, and memory without a path."""
    found = []
    for link in Path("/proc").glob(f"{process}/fd/*"):
        with suppress(OSError):
            found.append(str(link.readlink()))
    return found


def log_is_open(home: Path) -> bool:
    return any(file.startswith(str(home)) for file in opened_by("[0-9]*"))


def holds_weights(pid: int) -> bool:
    return any(file.startswith("/memfd:heldout-weights") for file in opened_by(str(pid)))


SLOW_START = """
import os, signal, sys, time
from pathlib import Path
import torch
from heldout import Sample
from heldout.training.measuring import Task
from heldout.training.background.worker import EvalWorker
from tests.training import worker_policy

home = Path(sys.argv[1])
spec = Path(worker_policy.__file__).with_name("worker_failures.py")
worker = EvalWorker(f"{spec}:never", snapshots=2)
first, second = [worker.try_snapshot(torch.nn.Linear(2, 2), step=n) for n in (1, 2)]
child = os.fork()
if child == 0:
    while True:
        signal.pause()
said = []

def keep_going(done, total):
    if not said and "godot" in (home / "worker.log").read_text():
        said.append(1)
        print(worker.pid, child, flush=True)
    return True

worker.measure(
    Task(
        step=1,
        samples=[Sample("a", {"question": "1"})],
        size=1,
        runner_builder=worker_policy.builder,
        run_dir=home,
        pass_threshold=0.5,
        seed=0,
        keep_going=keep_going,
    ),
    first,
)
"""


def test_a_training_that_is_killed_while_its_worker_starts_ends_it_though_a_child_lives(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_START, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pid, child = map(int, process.stdout.readline().split())
    try:
        process.kill()
        process.wait()
        wait_until_ended(pid)
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


KILLS = int(os.environ.get("HELDOUT_KILLS", "3"))
"""With HELDOUT_KILLS=100, `pytest …/test_worker.py -k whoever` takes 15 minutes."""


@pytest.mark.parametrize("number", range(KILLS))
def test_nothing_is_left_whoever_is_killed_first(number: int, tmp_path: Path) -> None:
    script = SCRIPT.replace("task = Task(", "print('taken', flush=True)\ntask = Task(")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "taken\n"
    assert holds_weights(process.pid)
    first = number % 4
    if first:  # else while the worker starts
        pid = int(process.stdout.readline())
        assert holds_weights(pid)
    if first == 2:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    if first == 3:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    until = time.monotonic() + LONG
    while log_is_open(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert not log_is_open(tmp_path)


def test_ctrl_c_is_the_trainings_and_leaves_the_worker_to_it(tmp_path: Path) -> None:
    process = training(tmp_path)
    pid = int(process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=LONG)
    assert said == "None 2 2\n"
    assert process.returncode == 0
    # And nothing is left of either, though nobody has closed the worker.
    wait_until_ended(pid)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_nothing_to_do_with_it(worker: EvalWorker, tmp_path: Path) -> None:
    results(worker, tmp_path, "1")
    pid = worker.pid
    child = os.fork()
    if child == 0:
        code = 1
        try:
            worker.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert results(worker, tmp_path, "1").skipped is None
    assert worker.pid == pid


# --- What is refused before training begins -----------------------------------------------------


def test_a_spec_or_a_setting_that_cannot_be_meant_is_refused() -> None:
    for spec in ("", "evals.py", "evals.py:", "evals.py:not a name", 5):
        with pytest.raises(InvalidInput, match="file.py:function"):
            EvalWorker(spec)
    with pytest.raises(InvalidInput, match="does not exist"):
        EvalWorker("nowhere.py:policy")
    for settings in (
        {"snapshots": 0},
        {"snapshots": "2"},
        {"start_timeout": 0},
        {"copy": "some"},
        {"environment": {"A": 5}},
    ):
        with pytest.raises(InvalidInput):
            EvalWorker(POLICY, **settings)


def test_a_worker_starts_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE_WORKER, "1")
    with pytest.raises(InvalidInput, match="if __name__ == '__main__'"):
        EvalWorker(POLICY)


def test_the_environment_goes_along_but_not_the_place_among_ranks() -> None:
    own = {"HOME": "/h", "RANK": "3", "TORCHELASTIC_RUN_ID": "x", "SECRET": "s", "GONE": "g"}
    found = worker_environment(own, {"CUDA_VISIBLE_DEVICES": "1", "GONE": None})
    del found["PYTHONIOENCODING"]
    assert found == {"HOME": "/h", "SECRET": "s", INSIDE_WORKER: "1", "CUDA_VISIBLE_DEVICES": "1"}
    assert worker_environment(own, {"RANK": "0"})["RANK"] == "0"


# --- The worker's side --------------------------------------------------------------------------


@pytest.fixture
def load() -> Iterator[Any]:
    """Hands the weights of a model to another one."""
    buffers: list[WeightBuffer] = []

    def hand_over(mine: Any, model: Any, **settings: Any) -> None:
        buffers.append(WeightBuffer(**settings))
        buffers[-1].write(model)
        layout = buffers[-1].wait()
        load_weights(mine, layout, read_tensors(buffers[-1].fd, layout))

    yield hand_over
    for buffer in buffers:
        buffer.close()


def test_weights_are_replaced_in_place(load: Any) -> None:
    mine, model = Network(), Network(4.0)
    place = mine.knows.data_ptr()
    load(mine, model)
    assert mine.knows.data_ptr() == place
    assert fingerprint(mine) == fingerprint(model)


def test_weights_that_are_not_trained_have_to_be_the_same_or_are_copied_too(
    load: Any,
) -> None:
    mine, model = Network(), Network(4.0)
    with torch.no_grad():
        model.base.weight.add_(1)
    with pytest.raises(InvalidInput, match="copy='all'"):
        load(mine, model)
    assert mine.knows.item() == 0.0
    load(mine, model, copy="all")
    assert fingerprint(mine) == fingerprint(model)


def test_adapters_that_are_set_otherwise_in_the_worker_are_refused(load: Any) -> None:
    def adapted() -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = get_peft_model(tiny_model()[0], LoraConfig(target_modules=["q_proj"]))
            made.add_adapter("other", LoraConfig(target_modules=["q_proj"]))
            return made

    mine, model = adapted(), adapted()
    load(mine, model)
    assert fingerprint(mine) == fingerprint(model)
    model.set_adapter("other")
    with pytest.raises(InvalidInput, match="the adapters are others in the worker"):
        load(mine, model, copy="all")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda m: setattr(m, "knows", torch.nn.Parameter(torch.zeros(2))),
            r"of \[2\] in training",
        ),
        (lambda m: m.double(), "float64 of .* in training and torch.float32"),
        (lambda m: delattr(m, "base"), "has no base.bias, base.weight"),
        (lambda m: delattr(m, "knows"), "the one in training has no knows"),
    ],
)
def test_weights_that_do_not_fit_are_refused(load: Any, change: Any, said: str) -> None:
    mine, model = Network(), Network(4.0)
    change(model)
    with pytest.raises(InvalidInput, match=said):
        load(mine, model)
    assert mine.knows.item() == 0.0


def test_a_model_that_was_made_in_inference_mode_takes_weights(load: Any) -> None:
    with torch.inference_mode():
        mine, model = Network(), Network(4.0)
    load(mine, model)
    assert mine.knows.item() == 4.0


def test_two_tensors_do_not_go_into_one(load: Any) -> None:
    tied = torch.ones(2)
    with pytest.raises(InvalidInput, match="one tensor in the worker, two in training"):
        load({"a": tied, "b": tied}, {"a": tied, "b": tied + 1})
    apart = {"a": torch.zeros(2), "b": torch.zeros(2)}
    load(apart, {"a": tied, "b": tied})
    assert apart["b"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("number", r"^number\(\) returns \(model, runner builder\)"),
        ("swapped", r"^swapped\(\) returns \(model, runner builder\)"),
        ("none", "no function"),
    ],
)
def test_what_policy_has_to_be_is_said(function: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        build_policy(CallFunction(1, f"{FAILURES}:{function}", []))
