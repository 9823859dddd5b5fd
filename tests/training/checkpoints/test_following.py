"""A folder of checkpoints, followed: each evaluated once, whatever happens to them, or to us."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalReport, Sample, Sampling, evaluate
from heldout._core.config import EvalConfig
from heldout._evals.rollout import EvalDefinition
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput, ResumeMismatch, RunBusy
from heldout.training import CurveMonitor, CurvePoint, follow_checkpoints, read_points
from heldout.training.checkpoints import converting, following, holding
from heldout.training.checkpoints.following import Follower
from heldout.training.curve.points import request_stop
from heldout.training.loggers import CallableLogger
from heldout.types import Trajectory
from tests.processes import wait_until_ended
from tests.training.checkpoints import saved

SERVER = Path(__file__).with_name("server.py")


class Folder:
    """A folder of checkpoints, and its curve. Time passes when the follower sleeps."""

    def __init__(self, path: Path) -> None:
        self.path, self.run_dir = path / "ckpt", path / "curve"
        self.path.mkdir()
        self.scored: list[str] = []
        self.meanwhile: list[Callable[[], object]] = []
        """Called one by one, each at a sleep."""
        self.now = 0.0
        self.score: Callable[[Trajectory, Sample], float] = saved.score_fn

    def save(self, step: int, seed: int | None = None) -> Path:
        return saved.save(self.path / f"checkpoint-{step}", step if seed is None else seed)

    def remove(self, step: int) -> None:
        shutil.rmtree(self.path / f"checkpoint-{step}")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def follow(self, **options: Any) -> list[CurvePoint]:
        def score_fn(trajectory: Trajectory, sample: Sample) -> float:
            self.scored.append(sample.id)
            return self.score(trajectory, sample)

        from heldout.training import set_version

        set_version(score_fn, 1)
        given = {"config": saved.CONFIG, "run_dir": self.run_dir, "once": True, **options}
        return follow_checkpoints(self.path, saved.SAMPLES, score_fn, **given)

    @property
    def evals(self) -> float:
        """How many evals' worth of samples were scored since the last time."""
        scored, self.scored = self.scored, []
        return len(scored) / len(saved.SAMPLES)

    def lines(self) -> list[CurvePoint]:
        return read_points(self.run_dir / "curve.jsonl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    monkeypatch.setattr(Follower, "_clock", staticmethod(lambda: folder.now))
    monkeypatch.setattr(Follower, "_sleep", staticmethod(folder.sleep))
    yield folder
    for left in ("curve/converted", "curve/held", "ckpt/_heldout_*"):
        assert not list(tmp_path.glob(left))


def results(points: list[CurvePoint]) -> list[tuple[int, str | None]]:
    return [(point.step, point.weights) for point in points if point.has_result]


def hash_of(seed: int) -> str | None:
    return fingerprint(saved.model_of(seed))


def skips(points: list[CurvePoint]) -> dict[int, str | None]:
    return {point.step: point.skipped for point in points if not point.has_result}


def test_each_checkpoint_is_evaluated_once_and_known_by_its_weights(folder: Folder) -> None:
    folder.save(100)
    folder.save(20)
    points = folder.follow()
    assert results(points) == [(20, hash_of(20)), (100, hash_of(100))]
    assert folder.evals == 2
    assert all(point.verdict is not None for point in points)
    report = EvalReport.load(folder.run_dir / "steps" / "00000020")
    assert report.config["endpoint"]["version"] == hash_of(20)
    folder.save(120)
    assert len(folder.follow()) == 3
    assert folder.evals == 1
    damaged = f'{{"folder": "{folder.path}", "finished": {{"x": ["", ""]}}}}'
    for number, text in enumerate(("{", damaged), 1):  # then they are hashed again
        (folder.run_dir / following.STATE_NAME).write_text(text)
        os.utime(folder.path / "checkpoint-20" / "config.json", (number, number))
        assert len(folder.follow()) == 3
        assert (folder.evals, len(folder.lines())) == (0, 3)


def test_a_step_that_is_overwritten_supersedes_what_came_of_the_earlier_attempt(
    folder: Folder,
) -> None:
    for step in (10, 20, 30):
        folder.save(step)
    first = folder.follow()
    folder.save(20, seed=21)
    assert results(folder.follow()) == [(10, hash_of(10)), (20, hash_of(21))]
    assert folder.evals == 4
    folder.save(30, seed=31)
    last = folder.follow()
    assert results(last) == [(10, hash_of(10)), (20, hash_of(21)), (30, hash_of(31))]
    assert [point.session == first[0].session for point in last] == [True, False, False]
    assert last[1].session == last[2].session
    assert folder.evals == 1
    folder.follow()
    assert folder.evals == 0


def test_a_checkpoint_is_taken_when_it_is_whole(folder: Folder) -> None:
    path = folder.save(10) / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    seen: list[float] = []

    def complete() -> None:
        assert folder.evals == 0
        path.write_bytes(whole)

    def leave_temporary() -> None:
        assert folder.evals == 0
        (path.parent / "optimizer.pt.tmp").touch()

    def rename() -> None:
        assert folder.evals == 0
        (path.parent / "optimizer.pt.tmp").rename(path.parent / "optimizer.pt")

    folder.meanwhile = [lambda: None, leave_temporary, complete, rename, lambda: None, lambda: None]
    folder.meanwhile.append(lambda: seen.append(folder.evals))
    points = folder.follow(once=False, stop_after=70)
    assert results(points) == [(10, hash_of(10))]
    assert seen == [1.0]


def test_what_is_not_whole_at_the_end_is_a_skip_with_its_reason(folder: Folder) -> None:
    folder.save(10)
    (folder.save(20) / "model.safetensors").write_bytes(b"12")
    folder.follow()
    assert [point.step for point in folder.lines()] == [10]  # it may be complete next time
    folder.meanwhile = [(folder.path / "done").touch]
    points = folder.follow(once=False)
    assert skips(points) == {
        20: "checkpoint-20 is not whole: ValueError: model.safetensors is empty"
    }
    assert [point.step for point in points] == [10, 20]


def test_an_empty_folder_that_is_left_of_a_checkpoint_is_a_removed_one(folder: Folder) -> None:
    for step in (10, 20, 30):
        saved.save_verl(folder.path / f"global_step_{step}", step)

    def clean_up(trajectory: Trajectory, sample: Sample) -> float:
        for path in folder.path.glob("*/actor"):
            shutil.rmtree(path)
        return saved.score_fn(trajectory, sample)

    folder.score = clean_up
    points = folder.follow()
    assert results(points) == [(10, hash_of(10)), (20, hash_of(20))]
    assert str(skips(points)[30]).startswith("global_step_30 was removed before it could be evalu")


def test_a_killed_eval_goes_on_where_it_was(folder: Folder) -> None:
    for step in (10, 20, 30):
        folder.save(step)

    def interrupt(trajectory: Trajectory, sample: Sample) -> float:
        if len(folder.scored) == 9:
            raise KeyboardInterrupt
        return saved.score_fn(trajectory, sample)

    folder.score = interrupt
    with pytest.raises(KeyboardInterrupt):
        folder.follow(config=replace(saved.CONFIG, max_concurrent=1))
    left = folder.lines()
    assert [(p.step, p.has_result, p.pending) for p in left] == [
        *[(10, True, False), (20, False, True), (30, False, True)]
    ]
    folder.scored, folder.score = [], saved.score_fn
    folder.remove(30)
    points = folder.follow()
    assert results(points) == [(10, hash_of(10)), (20, hash_of(20))]
    assert skips(points) == {30: "checkpoint-30 was removed before it could be evaluated"}
    assert len(folder.scored) == 4  # of six: two were in the journal
    assert sorted(p.name for p in (folder.run_dir / "steps").iterdir()) == ["00000010", "00000020"]
    assert len({point.session for point in folder.lines()}) == 1


def test_an_attempt_that_was_killed_before_its_first_result_is_continued(folder: Folder) -> None:
    folder.save(10)
    folder.follow()
    folder.save(10, seed=11)

    def interrupt(trajectory: Trajectory, sample: Sample) -> float:
        raise KeyboardInterrupt

    folder.score = interrupt
    with pytest.raises(KeyboardInterrupt):
        folder.follow()
    folder.score = saved.score_fn
    assert results(folder.follow()) == [(10, hash_of(11))]
    assert len({point.session for point in folder.lines()}) == 2


def test_an_eval_that_was_changed_before_its_first_result_begins_anew(folder: Folder) -> None:
    folder.save(10)

    def interrupt(trajectory: Trajectory, sample: Sample) -> float:
        if len(folder.scored) == 3:
            raise KeyboardInterrupt
        return 0.0

    folder.score = interrupt
    with pytest.raises(KeyboardInterrupt):
        folder.follow(config=replace(saved.CONFIG, max_concurrent=1))
    folder.scored, folder.score = [], saved.score_fn
    [point] = folder.follow(config=replace(saved.CONFIG, sampling=Sampling(max_tokens=2)))
    assert (point.has_result, point.run, folder.evals) == (True, "steps/00000010-2", 1)


def test_one_that_does_not_load_is_a_skip_and_the_next_is_evaluated(folder: Folder) -> None:
    folder.save(10)
    saved.edit_json(folder.save(20) / "config.json", model_type="martian")
    folder.save(30)
    points = folder.follow()
    assert [step for step, _ in results(points)] == [10, 30]
    assert "martian" in str(skips(points)[20])
    folder.evals
    folder.save(20)
    assert [step for step, _ in results(folder.follow())] == [10, 20, 30]
    assert folder.evals == 1


def write_in_place(path: Path, content: bytes) -> None:
    """As `rsync --inplace --times` writes: the same file, of the same size and time."""
    times = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("clones", [True, False])
def test_one_that_is_overwritten_while_it_is_evaluated_is_evaluated_again(
    clones: bool, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each point is of the weights that it names, on a file system with clones and without."""
    if clones:  # what they are to a reader: the same bytes in another file
        monkeypatch.setattr(
            holding, "_clone", lambda source, target: bool(shutil.copyfile(source, target))
        )
    other = (saved.save(folder.run_dir.parent / "other", 11) / "model.safetensors").read_bytes()
    path = folder.save(10) / "model.safetensors"
    answers: list[str] = []

    def overwrite(trajectory: Trajectory, sample: Sample) -> float:
        answers.append(trajectory.answer)
        if len(folder.scored) == 1:
            write_in_place(path, other)
        return saved.score_fn(trajectory, sample)

    folder.score = overwrite
    config = replace(saved.CONFIG, max_concurrent=1)
    assert results(folder.follow(config=config)) == [(10, hash_of(10))]
    os.utime(path)  # until then it looks as it did
    assert results(folder.follow(config=config)) == [(10, hash_of(11))]
    mixed, answers = answers, []
    for step, seed in ((20, 10), (30, 11)):
        folder.save(step, seed)
    folder.scored = ["x"]
    folder.follow(config=config)
    assert mixed == answers
    assert [point.has_result for point in folder.lines()] == [True] * 4


@pytest.mark.parametrize("serve", [True, False])
def test_one_that_is_overwritten_before_it_is_loaded_is_taken_again(
    serve: bool, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = (saved.save(folder.run_dir.parent / "other", 11) / "model.safetensors").read_bytes()
    path = folder.save(10) / "model.safetensors"
    inner = converting.hash_weights
    hashes: list[str] = []

    def hash_then_overwrite(*given: Any) -> str:
        hashes.append(inner(*given))
        if len(hashes) == 1:
            write_in_place(path, other)
        return hashes[-1]

    monkeypatch.setattr(following, "hash_weights", hash_then_overwrite)
    command = f"{sys.executable} {SERVER} {{path}} {{port}} {folder.run_dir.parent / 'pids'}"
    options = {"serve": command} if serve else {}
    assert results(folder.follow(**options)) == [(10, hash_of(11))]
    assert [point.skipped for point in folder.lines()] == [
        *["checkpoint-10 was overwritten while it was read", None]
    ]
    assert hashes == [hash_of(10), hash_of(11), hash_of(11)]


def test_what_a_trainer_removes_is_evaluated_if_it_was_found_whole(folder: Folder) -> None:
    """As `save_total_limit=1` does, while the first of three is being loaded."""
    for step in (10, 20, 30):
        folder.save(step)

    def rotate(trajectory: Trajectory, sample: Sample) -> float:
        for step in (10, 20, 30):
            shutil.rmtree(folder.path / f"checkpoint-{step}", ignore_errors=True)
        return saved.score_fn(trajectory, sample)

    folder.score = rotate
    points = folder.follow()
    assert results(points) == [(10, hash_of(10)), (20, hash_of(20))]
    assert skips(points) == {
        30: "checkpoint-30 was removed before it could be evaluated: it was gone after the eval of "
        "checkpoint-10. Keep more checkpoints (save_total_limit), save fewer, or evaluate fewer "
        "samples"
    }


def test_one_that_is_removed_between_hash_and_load_is_evaluated(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(10)
    inner = converting.hash_weights

    def hash_then_remove(*given: Any) -> str:
        hashed = inner(*given)
        shutil.rmtree(folder.path / "checkpoint-10", ignore_errors=True)
        return hashed

    monkeypatch.setattr(following, "hash_weights", hash_then_remove)
    assert results(folder.follow()) == [(10, hash_of(10))]


def test_the_model_of_a_checkpoint_is_gone_before_the_next_is_loaded(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    models: list[weakref.ref[Any]] = []
    left: list[int] = []

    def watched(*args: Any, **settings: Any) -> Any:
        left.append(sum(model() is not None for model in models))
        model = load(*args, **settings)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", watched)
    for step in (10, 20, 30):
        folder.save(step)
    gc.disable()  # what is freed is freed by the follower
    try:
        assert len(results(folder.follow())) == 3
    finally:
        gc.enable()
    assert left == [0, 0, 0]


def test_what_cannot_be_read_is_refused_at_the_start(folder: Folder) -> None:
    saved.save_fsdp(folder.path / "checkpoint-10", 1)
    with pytest.raises(InvalidInput, match="--base names the model"):
        folder.follow()
    assert folder.lines() == []
    base = saved.save(folder.path / "base", 99)
    assert results(folder.follow(base=str(base))) == [(10, hash_of(1))]


def test_an_adapter_is_put_on_no_other_base_than_its_own(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, other = (saved.save(tmp_path / name, seed) for name, seed in (("a", 98), ("b", 99)))
    path = folder.path / "checkpoint-10"
    saved.save_adapter(path, 1, base)
    with pytest.raises(
        InvalidInput, match=f"is an adapter of {base}, .* {other} has other weights"
    ):
        folder.follow(base=str(other))
    assert not any(point.has_result for point in folder.lines())
    shutil.copytree(base, tmp_path / "moved")
    [point] = folder.follow(base=str(tmp_path / "moved"))
    assert point.has_result
    assert "cannot be checked" not in caplog.text
    saved.edit_json(path / "adapter_config.json", base_model_name_or_path="some/model")
    assert folder.follow(base=str(base))[0].has_result
    assert "names some/model as the base, and it is put on" in caplog.text


def test_metadata_that_is_cut_is_waited_for_and_that_could_run_code_is_a_skip(
    folder: Folder,
) -> None:
    base = saved.save(folder.path / "base", 99)
    for step in (10, 20, 30):
        saved.save_fsdp(folder.path / f"checkpoint-{step}", step)
    metadata = [
        folder.path / f"checkpoint-{step}" / "pytorch_model_fsdp_0" / ".metadata"
        for step in (20, 30)
    ]
    metadata[0].write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    metadata[1].write_bytes(metadata[1].read_bytes()[:-40])
    points = folder.follow(base=str(base))
    assert results(points) == [(10, hash_of(10))]
    assert "os.system" in str(skips(points)[20])
    assert [point.step for point in points] == [10, 20]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "hf:some/model"}, r"would be the same at each step"),
        ({"model": "nonsense:{path}"}, r"nonsense"),
        ({"model": "hf:{path}", "serve": "x {path} {port}"}, "serve goes without model"),
        ({"serve": "vllm serve {path}"}, r"serve has \{port\} somewhere"),
        ({"convert": "cp {path}"}, r"convert has \{out\} somewhere"),
        ({"pattern": "step"}, "a pattern"),
        ({"poll_seconds": 0}, "poll_seconds must be greater than 0"),
        ({"label": "a b"}, "label must be letters"),
        ({"config": EvalConfig(cache=True)}, "each checkpoint has answers of its own"),
        ({"config": EvalConfig(until="mean>0.8")}, "leave out until"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], reason: str, folder: Folder) -> None:
    with pytest.raises(InvalidInput, match=reason):
        folder.follow(**options)
    assert not folder.run_dir.exists()


def test_a_curve_is_of_one_folder_one_model_and_one_process(folder: Folder, tmp_path: Path) -> None:
    folder.save(10)
    folder.follow()
    other = tmp_path / "other"
    with pytest.raises(InvalidInput, match="has the curve of the checkpoints in"):
        follow_checkpoints(other, saved.SAMPLES, saved.score_fn, run_dir=folder.run_dir, once=True)
    with pytest.raises(ResumeMismatch, match="another model"):
        folder.follow(model="hf:{path}/")
    with pytest.raises(ResumeMismatch, match="max_tokens"):
        folder.follow(config=replace(saved.CONFIG, sampling=Sampling(max_tokens=2)))
    saved.edit_json(folder.save(20) / "tokenizer_config.json", eos_token="w3")
    assert "another tokenizer" in str(skips(folder.follow())[20])


def test_it_ends_when_nothing_has_come_for_a_while_or_when_asked(folder: Folder) -> None:
    folder.meanwhile = [lambda: folder.save(10)]
    points = folder.follow(once=False, stop_after=50)
    assert len(points) == 1
    assert folder.now >= 60
    folder.meanwhile = [lambda: request_stop(folder.run_dir, "enough")]
    stop = folder.path / "stop-training"
    folder.follow(once=False, stop_file=stop)
    assert stop.read_text() == "enough\n"


def test_the_stop_file_is_written_when_the_monitor_says_so(folder: Folder) -> None:
    folder.save(10)
    stop = folder.path / "slurm" / "stop"
    heard: list[Any] = []
    points = folder.follow(
        stop_file=stop,
        monitor=lambda points: "good enough",
        loggers=[CallableLogger(lambda name, step, fields: heard.append((step, fields)))],
        heartbeat_fn=lambda name, fields: heard.append((name, fields["step"])),
    )
    assert stop.read_text() == "good enough\n"
    assert points[0].stop == "good enough"
    assert ("checkpoints", 10) in heard
    assert any(step == 10 for step, _ in heard)
    folder.save(20)
    stop.unlink()
    folder.follow(stop_file=stop, monitor=CurveMonitor(stop_on_plateau=3))
    assert not stop.exists()


def test_a_command_converts_a_checkpoint(folder: Folder) -> None:
    base = saved.save(folder.path / "base", 99)
    saved.save_shards(folder.path / "step_10" / "inner", 4)  # no config: as torchtitan's has none
    how = {"convert": "cp -r {path}/inner/. {out}", "base": str(base)}
    assert results(folder.follow(**how)) == [(10, hash_of(4))]
    (folder.path / "step_20").mkdir()
    (folder.path / "step_30" / "inner").mkdir(parents=True)
    reasons = skips(folder.follow(**how))
    assert "ended with exit code 1" in str(reasons[20])
    assert reasons[30] == "what cp has written for step_30 has no weights"


def test_a_command_serves_a_checkpoint_and_is_ended_with_its_group(
    folder: Folder, tmp_path: Path
) -> None:
    folder.save(10)
    pids = tmp_path / "pids"
    serve = f"{sys.executable} {SERVER} {{path}} {{port}} {pids}"
    points = folder.follow(serve=serve)
    assert [(point.step, point.reward) for point in points] == [(10, 1.0)]
    wait_until_ended(*map(int, pids.read_text().split()))
    folder.save(20)
    shutil.copy(SERVER, tmp_path / "kept.py")
    folder.follow(serve=serve)
    assert folder.evals == 2


def test_a_server_that_does_not_start_is_a_skip_with_what_it_printed(folder: Folder) -> None:
    folder.save(10)
    points = folder.follow(serve="sh -c 'echo CUDA out of memory >&2; exit 7' {path} {port}")
    assert str(skips(points)[10]).startswith(
        "the server ended with exit code 7: CUDA out of memory ("
    )


def test_an_executor_gets_the_model_by_its_path(folder: Folder) -> None:
    asked: list[Any] = []

    class Elsewhere:
        async def evaluate(self, definition: EvalDefinition, config: EvalConfig) -> EvalReport:
            asked.append(config.endpoint)
            return await evaluate(definition, config)

    path = folder.save(10)
    points = folder.follow(executor=Elsewhere())
    held = folder.run_dir / "held" / "10" / path.name
    assert (asked, len(results(points))) == ([f"hf:{held}"], 1)


def test_an_eval_whose_items_all_error_is_a_skip_that_names_the_error(folder: Folder) -> None:
    folder.save(10)

    def fail(trajectory: Trajectory, sample: Sample) -> float:
        raise RuntimeError("the grader is broken")

    folder.score = fail
    reason = str(skips(folder.follow())[10])
    assert reason.startswith("all 6 items errored, so there is no mean")
    assert "--resume" not in reason


def test_two_processes_do_not_write_one_curve(folder: Folder) -> None:
    from heldout.training.curve.points import CurveWriter

    folder.run_dir.mkdir()
    writer = CurveWriter(folder.run_dir / "curve.jsonl")
    with pytest.raises(RunBusy):
        folder.follow()
    writer.close()
