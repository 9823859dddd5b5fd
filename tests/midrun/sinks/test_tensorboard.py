"""Against the real tensorboard: what its loaders read from the event files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heldout.errors import HeldoutError, InvalidInput
from heldout.midrun.sinks import TensorboardSink
from tests.midrun.sinks.scenario import RESULTS, SKIPPED, STEPS, fields_of, play, send

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.integration

REWARD = "rl_eval/reward"


class Trainer:
    """Writes its own event file, as torch's SummaryWriter does with this very class."""

    def __init__(self, logdir: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(logdir))

    def __call__(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        value = Summary.Value(tag="loss", simple_value=step)
        self._writer.add_event(Event(step=step, summary=Summary(value=[value])))

    def close(self) -> None:
        self._writer.close()


def events(folder: Path) -> Iterator[Any]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(folder.glob("events.*")):
        yield from EventFileLoader(str(path)).Load()


def by_accumulator(folder: Path, tag: str) -> list[tuple[int, float]]:
    """As the library that scripts read event files with has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(e.step, e.value) for e in accumulator.Scalars(tag)]


def by_dashboard(logdir: Path, run: str, tag: str) -> list[tuple[int, float]]:
    """As TensorBoard itself has it, with the loader that is written in Python."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer(tensor_size_guidance={"scalars": 0})
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    return [(e.step, e.tensor_proto.float_val[0]) for e in multiplexer.Tensors(run, tag)]


def by_fast_loader(folder: Path, tag: str) -> list[tuple[int, float]]:
    """By the rule of its data server: a step preempts those of its series that are not smaller."""
    kept: list[tuple[int, float]] = []
    for event in events(folder):
        for value in event.summary.value:
            if value.tag == tag:
                kept = [point for point in kept if point[0] < event.step]
                kept.append((event.step, value.tensor.float_val[0]))
    return kept


def texts(folder: Path, tag: str) -> dict[int, str]:
    return {
        event.step: value.tensor.string_val[0].decode()
        for event in events(folder)
        for value in event.summary.value
        if value.tag == tag
    }


def every_reading(logdir: Path, tag: str) -> list[list[tuple[int, float]]]:
    folder = logdir / "heldout"
    return [
        by_accumulator(folder, tag),
        by_dashboard(logdir, "heldout", tag),
        by_fast_loader(folder, tag),
    ]


def points(steps: Iterable[int]) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(step / 100)) for step in sorted(steps)]


def test_late_results_cost_the_trainer_nothing_and_are_at_their_steps(tmp_path: Path) -> None:
    trainer, sink = Trainer(tmp_path), TensorboardSink(tmp_path)
    play(trainer, sink)
    sink.close()
    trainer.close()
    losses = [(step, float(step)) for step in STEPS]
    assert by_accumulator(tmp_path, "loss") == losses
    assert by_dashboard(tmp_path, ".", "loss") == losses
    for found in every_reading(tmp_path, REWARD):
        assert found == points(RESULTS)
    for found in every_reading(tmp_path, "rl_eval/skipped"):
        assert found == [(SKIPPED, 1.0)]
    for found in every_reading(tmp_path, "rl_eval/lag_steps"):
        assert [step for step, _ in found] == sorted(RESULTS)
    assert texts(tmp_path / "heldout", "rl_eval/reason") == {SKIPPED: "no model"}


def test_the_reason_of_a_skip_is_on_the_text_dashboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    sink = TensorboardSink(tmp_path)
    sink.log("e", 3, {"eval_skipped": True, "eval_reason": "no model"})
    sink.close()
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    assert multiplexer.PluginRunToTagToContent("text")["heldout"].keys() == {"e/reason"}


def test_a_result_can_be_read_when_log_returns(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path)
    sink.log("rl_eval", 3, fields_of(3))
    assert by_accumulator(tmp_path / "heldout", REWARD) == points([3])
    sink.close()


def test_an_eval_does_not_take_the_points_of_another(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path)
    for name, step in (("a", 30), ("b", 20), ("b", 40), ("a", 10), ("b", 10)):
        sink.log(name, step, fields_of(step))
    sink.close()
    for tag, steps in (("a/reward", [10, 30]), ("b/reward", [10, 20, 40])):
        for found in every_reading(tmp_path, tag):
            assert found == points(steps)


def test_a_restarted_training_keeps_what_it_had_before(tmp_path: Path) -> None:
    for steps in ([20, 10], [40, 30]):
        sink = TensorboardSink(tmp_path)
        for step in steps:
            sink.log("rl_eval", step, fields_of(step))
        sink.close()
    for found in every_reading(tmp_path, REWARD):
        assert found == points([10, 20, 30, 40])


def test_what_comes_later_than_is_remembered_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path, remembered=2)
    for step in (20, 30, 40, 50, 35):
        sink.log("rl_eval", step, fields_of(step))
    with pytest.raises(HeldoutError, match="give the sink a larger `remembered`"):
        sink.log("rl_eval", 25, fields_of(25))
    sink.close()
    for found in every_reading(tmp_path, REWARD):
        assert found == points([20, 30, 35, 40, 50])


def test_the_first_result_of_another_eval_does_not_bring_back_what_is_forgotten(
    tmp_path: Path,
) -> None:
    sink = TensorboardSink(tmp_path, remembered=2)
    for name, step in (("rl_eval", 20), ("rl_eval", 30), ("rl_eval", 40), ("b", 5)):
        sink.log(name, step, fields_of(step))
    with pytest.raises(HeldoutError, match="too late for TensorBoard"):
        sink.log("rl_eval", 10, fields_of(10))
    sink.close()
    for found in every_reading(tmp_path, REWARD):
        assert found == points([20, 30, 40])


def test_a_memory_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="remembered is a whole number"):
        TensorboardSink(tmp_path, remembered=0)


def test_results_in_random_order(tmp_path: Path) -> None:
    """200: each late one writes the later ones again, which in random order is half of them."""
    report = send(200, TensorboardSink(tmp_path))
    assert report.complete, str(report)
    for found in every_reading(tmp_path, REWARD):
        assert found == points(range(200))
