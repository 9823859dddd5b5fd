"""Against the real loops of tinker-cookbook, with clients that need no network."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import chz
import httpx
import pytest
import tinker
from tinker.types import RequestErrorCategory
from tinker_cookbook.distillation import sdft, train_off_policy, train_on_policy
from tinker_cookbook.distillation.datasets import TeacherConfig
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, TrainingClientEvaluator
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.rl import train
from tinker_cookbook.supervised import train as supervised
from tinker_cookbook.tokenizer_utils import register_tokenizer
from tinker_cookbook.utils import ml_log, trace

from heldout import EvalReport, Message, Metric, Sample, Sampling, Score, ToolCall, Trajectory
from heldout._core import versions
from heldout.environments import ToolEnvironment
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    ModelRefused,
    RunDirectoryError,
    TransientError,
    Unreachable,
)
from heldout.integrations import tinker as integration
from heldout.integrations.tinker import (
    HeldoutEvaluator,
    TinkerEndpoint,
    evaluate_final,
    with_heldout,
)
from heldout.integrations.tinker.endpoint import to_renderer_messages
from heldout.integrations.tinker.loops import Cadence, LoopStep, is_counted, sampler_path
from heldout.training import AsyncEvalDispatcher, CurvePoint, current_points, read_points
from tests.integration.tinker_fake import (
    MODEL,
    FakeSampling,
    FakeService,
    ProblemsBuilder,
    TextsBuilder,
    renderer,
    tokenizer,
)

pytestmark = pytest.mark.integration

SAMPLES = [Sample(f"s{i}", {"question": f"n={i}"}, str(i)) for i in range(10)]
REAL_SERVICE = tinker.ServiceClient
ROOT = Path(__file__).parents[2]
KEY = "tml-a-key-that-nobody-may-see"


def right(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("correct", trajectory.answer == sample.ground_truth, weight=1.0),))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log_path is here, so the points are in ./heldout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(tinker, "ServiceClient", fake)
    # The table of every step for the terminal is a third of what a training takes here; what the
    # loops log is in metrics.jsonl.
    monkeypatch.setattr(ml_log.PrettyPrintLogger, "log_metrics", lambda self, metrics, step: None)
    return fake


def evaluator(name: str = "counting", *, format: str = "role_colon", **settings: Any) -> Any:
    defaults = {"max_tokens": 20, "retries": 0}
    rendered = renderer(format)
    return HeldoutEvaluator(SAMPLES, right, rendered, name=name, **{**defaults, **settings})


def rl_config(batches: int = 5, *, log_path: str = ".", **settings: Any) -> Any:
    defaults: dict[str, Any] = {"eval_every": 2, "save_every": 2, "num_groups_to_log": 0}
    defaults["dataset_builder"] = ProblemsBuilder(batches=batches)
    return train.Config(
        learning_rate=1e-4,
        model_name=MODEL,
        recipe_name="test",
        max_tokens=20,
        log_path=log_path,
        **{**defaults, **settings},
    )


def logged_rows(log_path: str = ".") -> list[dict[str, Any]]:
    return list(map(json.loads, Path(log_path, "metrics.jsonl").read_text().splitlines()))


def logged() -> dict[int, dict[str, float]]:
    """What the loop's own logger wrote of our evals, by step."""
    found = {
        line["step"]: {k: v for k, v in line.items() if k.startswith("heldout/")}
        for line in logged_rows()
    }
    return {step: metrics for step, metrics in found.items() if metrics}


SKIPPED = {"heldout/counting/skipped": 1.0}


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.endswith("/seconds")}


def finish(config: Any, loop: Any = train.main, **final: Any) -> dict[str, float]:
    """Train, then measure the last weights."""

    async def main() -> dict[str, float]:
        await loop(config)
        return await evaluate_final(config, **final)

    return asyncio.run(main())


def curve(run_dir: str = "heldout") -> list[CurvePoint]:
    return current_points(read_points(Path(run_dir, "curve.jsonl")))


def rewards(points: list[CurvePoint], label: str = "counting") -> dict[int, float | None]:
    return {p.step: p.reward for p in points if p.label == label}


# --- A training that waits ----------------------------------------------------------------------


def test_the_curve_has_every_eval_the_last_weights_and_their_conversations(
    service: FakeService,
) -> None:
    final = finish(with_heldout(rl_config(), evaluator()))
    points = curve()
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8, 5: 1.0}
    assert [p.final for p in points] == [False, False, False, True]
    assert [(p.decoding or {})["step_from"] for p in points] == ["task"] * 3 + ["checkpoint"]
    assert [(p.decoding or {}).get("sampler_path") for p in points] == [
        None,
        "tinker://run1/sampler_weights/000002",
        "tinker://run1/sampler_weights/000004",
        "tinker://run1/sampler_weights/final",
    ]
    assert final["heldout/counting/reward"] == 1.0
    report = EvalReport.load(Path("heldout", points[1].run or ""))
    trajectory = report.results[3].trajectory
    assert [m.role for m in trajectory.messages] == ["user", "assistant"]
    assert trajectory.answer == "3"
    assert trajectory.usage.prompt_tokens == len("User: n=3\n\nAssistant:")
    described = report.config["endpoint"]
    assert [described[key] for key in ("kind", "renderer", "step")] == ["tinker", "role_colon", 2]


def test_evals_are_greedy_and_logged_under_their_own_prefix(service: FakeService) -> None:
    asyncio.run(train.main(with_heldout(rl_config(), evaluator())))
    # The fake only lists requests at temperature 0, and training samples at 1.
    assert [updates for updates, _ in service.asked] == [0] * 10 + [2] * 10 + [4] * 10
    assert {(*p.stop, p.max_tokens) for _, p in service.asked} == {("\n\nUser:", 20)}
    found = logged()
    assert {step: metrics["heldout/counting/reward"] for step, metrics in found.items()} == {
        0: 0.0,
        2: 0.4,
        4: 0.8,
    }
    numbers = {key.removeprefix("heldout/counting/"): found[4][key] for key in found[4]}
    assert numbers["reward_ci_low"] < 0.8 < numbers["reward_ci_high"]
    assert (numbers["n"], numbers["n_errors"], numbers["metric_correct"]) == (10, 0, 0.8)
    assert all(isinstance(value, int | float) for value in numbers.values())


def test_sampling_may_be_asked_for_and_is_repeatable(service: FakeService) -> None:
    seen: list[Any] = []

    class Client(FakeSampling):
        async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
            seen.append(sampling_params)
            return await super().sample_async(prompt, num_samples, sampling_params)

    sampled = evaluator(sampling=Sampling(temperature=0.7, top_p=0.9), repeats=2)
    asyncio.run(sampled(Client(service, 5)))
    asyncio.run(sampled(Client(service, 5)))
    assert {(p.temperature, p.top_p) for p in seen} == {(0.7, 0.9)}
    seeds = [p.seed for p in seen]
    assert len(set(seeds)) == 20
    assert sorted(seeds[:20]) == sorted(seeds[20:])


def test_what_cannot_be_copied_may_be_part_of_an_eval(service: FakeService) -> None:
    lock = threading.Lock()

    class Judge:
        def __init__(self) -> None:
            self.lock = lock

        def __call__(self, trajectory: Trajectory, sample: Sample) -> Score:
            with self.lock:
                return right(trajectory, sample)

    judged = HeldoutEvaluator(SAMPLES, Judge(), renderer(), name="judged", max_tokens=20)
    asyncio.run(train.main(with_heldout(rl_config(), judged)))
    assert rewards(curve(), "judged") == {0: 0.0, 2: 0.4, 4: 0.8}
    config = json.loads(Path("config.json").read_text())
    assert config["evaluator_builders"] == [{"heldout": "judged"}]


# --- What must not happen -----------------------------------------------------------------------


def test_one_that_cannot_run_is_a_skip_and_leaves_the_others_alone(service: FakeService) -> None:
    class Broken:
        def build_generation_prompt(self, messages: Any) -> Any:
            raise RuntimeError("no such template")

        def parse_response(self, tokens: Any) -> Any: ...

        def get_stop_sequences(self) -> list[str]:
            return []

    broken = HeldoutEvaluator(SAMPLES, right, Broken(), name="broken", max_tokens=20)
    asyncio.run(train.main(with_heldout(rl_config(), broken, evaluator())))
    found = logged()
    broken_row = {k: v for k, v in found[2].items() if "broken" in k}
    assert untimed(broken_row) == {"heldout/broken/skipped": 1.0}
    assert found[2]["heldout/counting/reward"] == 0.4
    points = curve()
    assert rewards(points, "broken") == {0: None, 2: None, 4: None}
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8}
    skipped = [p.skipped or "" for p in points if p.label == "broken"]
    assert all("all 10 items errored" in why and "no such template" in why for why in skipped)


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (RuntimeError("no luck"), "endpoint: RuntimeError: no luck"),
        (asyncio.CancelledError(), "endpoint: "),
    ],
)
def test_an_item_that_errors_is_counted_and_named(
    service: FakeService, problem: BaseException, error: str
) -> None:
    class Client(FakeSampling):
        async def sample_async(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            if "n=3" in tokenizer().decode(prompt.to_ints()):
                raise problem
            return await super().sample_async(prompt, *args, **kwargs)

    metrics = asyncio.run(evaluator(step=lambda: 7, run_dir=".")(Client(service, 5)))
    assert metrics["heldout/counting/n_errors"] == 1
    assert metrics["heldout/counting/reward"] == 0.9
    assert metrics["heldout/counting/reward_scored"] == 1.0
    [point] = curve(".")
    [failed] = [o for o in point.outcomes if o.reward is None]
    assert failed.id == "s3"
    assert (failed.error or "").startswith(error)


def test_what_fails_for_a_moment_is_tried_again(service: FakeService) -> None:
    failures = [tinker.APIConnectionError(request=REQUEST)]
    service.fails = lambda updates: failures.pop() if failures else None
    metrics = asyncio.run(evaluator(step=lambda: 1, retries=1)(FakeSampling(service, 5)))
    assert metrics["heldout/counting/n_errors"] == 0
    assert len(service.asked) == 11


def test_a_key_that_is_refused_ends_the_eval_at_once_and_is_not_written(
    service: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    service.fails = lambda updates: refusal(401, f"the key {KEY} is unknown")
    careful = evaluator(step=lambda: 3, run_dir=".", max_concurrent=1)
    assert untimed(asyncio.run(careful(FakeSampling(service, 5)))) == SKIPPED
    assert len(service.asked) == 1
    [point] = curve(".")
    assert "(TINKER_API_KEY) is unknown" in (point.skipped or "")
    assert "(TINKER_API_KEY) is unknown" in caplog.text
    assert KEY not in caplog.text
    for path in Path().rglob("*"):
        assert not path.is_file() or KEY not in path.read_text(errors="replace"), path


REQUEST = httpx.Request("POST", "https://tinker.invalid/sample")


def refusal(status: int, said: str = "no") -> Exception:
    return tinker.APIStatusError(said, response=httpx.Response(status, request=REQUEST), body=None)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (tinker.APIConnectionError(request=REQUEST), Unreachable),
        (refusal(429), TransientError),
        (refusal(503), TransientError),
        (refusal(401), FatalEndpointError),
        (refusal(402), FatalEndpointError),
        (refusal(403), FatalEndpointError),
        (refusal(404), ModelRefused),
        (refusal(400), EndpointError),
        (refusal(400, "prompt + max_tokens exceeds context window"), ContextFull),
        (tinker.RequestFailedError("x", "id", RequestErrorCategory.User), EndpointError),
        (tinker.RequestFailedError("x", "id", RequestErrorCategory.Server), TransientError),
        (RuntimeError("x"), EndpointError),
    ],
)
def test_what_goes_wrong_is_sorted_as_for_any_endpoint(
    service: FakeService, problem: Exception, kind: type
) -> None:
    service.fails = lambda updates: problem
    endpoint = TinkerEndpoint(FakeSampling(service, 5), renderer(), max_tokens=9)
    with pytest.raises(EndpointError) as raised:
        asyncio.run(endpoint.complete([Message("user", "n=1")], Sampling(), ()))
    assert type(raised.value) is kind


def test_a_404_after_an_answer_is_about_one_request(service: FakeService) -> None:
    endpoint = TinkerEndpoint(FakeSampling(service, 5), renderer(), max_tokens=9)
    asyncio.run(endpoint.complete([Message("user", "n=1")], Sampling(), ()))
    service.fails = lambda updates: refusal(404)
    with pytest.raises(EndpointError) as raised:
        asyncio.run(endpoint.complete([Message("user", "n=2")], Sampling(), ()))
    assert type(raised.value) is EndpointError


def test_a_training_that_is_cancelled_ends(service: FakeService) -> None:
    async def main() -> None:
        service.gate = asyncio.Event()
        training = asyncio.create_task(train.main(with_heldout(rl_config(), evaluator())))
        while not service.asked:
            await asyncio.sleep(0)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    asyncio.run(main())


def test_an_answer_that_is_cut_off_is_truncated(service: FakeService) -> None:
    service.policy = lambda prompt, updates: "a very long answer"
    short = evaluator(step=lambda: 1, run_dir=".", max_tokens=6)
    metrics = asyncio.run(short(FakeSampling(service, 5)))
    assert metrics["heldout/counting/n_truncated"] == 10
    [point] = curve(".")
    assert all(outcome.truncated for outcome in point.outcomes)


def test_a_prompt_that_leaves_no_room_in_the_context_is_not_sent(service: FakeService) -> None:
    length = len("User: n=3\n\nAssistant:")
    asyncio.run(evaluator(step=lambda: 1, context_window=length)(FakeSampling(service, 5)))
    assert service.asked == []
    asyncio.run(evaluator(step=lambda: 1, context_window=length + 5)(FakeSampling(service, 5)))
    assert {parameters.max_tokens for _, parameters in service.asked} == {5}


# --- Names --------------------------------------------------------------------------------------


def test_two_evaluators_of_one_name_are_refused() -> None:
    plain = rl_config()
    for config, given in ((with_heldout(plain, evaluator()), 1), (plain, 2)):
        with pytest.raises(InvalidInput, match="two evaluators are called 'counting'"):
            with_heldout(config, *[evaluator()] * given)


def test_of_two_that_were_put_together_by_hand_the_first_is_not_overwritten(
    service: FakeService,
) -> None:
    first = evaluator(run_dir=".")
    second = evaluator(run_dir=".", pass_threshold=0.125)
    config = rl_config(evaluator_builders=[lambda: first, lambda: second])
    asyncio.run(train.main(config))
    assert logged()[4]["heldout/counting/reward"] == 0.8
    assert logged()[4]["heldout/counting/skipped"] == 1.0
    assert rewards(curve(".")) == {0: 0.0, 2: 0.4, 4: 0.8}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "a/b"}, "name must be letters"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"retries": -1}, "retries"),
        ({"context_window": 0}, "context_window"),
        (
            {"format": "qwen3_disable_thinking", "sampling": Sampling(stop=("END",))},
            "one kind or the other",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_before_training(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        evaluator(**settings)


def test_a_training_whose_points_could_not_be_written_does_not_begin(service: FakeService) -> None:
    Path("other").mkdir()
    Path("other", "run.json").write_text("{}")
    config = with_heldout(rl_config(), evaluator(run_dir="other"))
    with pytest.raises(RunDirectoryError, match="a run of another kind"):
        asyncio.run(train.main(config))
    assert service.updates == 0


# --- A training that goes on --------------------------------------------------------------------


def test_late_results_are_at_their_own_step(service: FakeService) -> None:
    told: list[tuple[int, float]] = []

    class Logger:
        def log(self, name: str, step: int, fields: Any) -> None:
            told.append((step, fields["eval_reward"]))

        def close(self) -> None:
            pass

    config = with_heldout(rl_config(), evaluator())
    home = Path("evals")

    async def main() -> None:
        service.gate = asyncio.Event()
        async with AsyncEvalDispatcher(run_dir=home, loggers=[Logger()], max_pending=9):
            await train.main(config)
            assert service.updates == 5
            assert all(point.pending for point in read_points(home / "curve.jsonl"))
            assert await evaluate_final(config) == {"heldout/counting/scheduled": 1.0}
            service.gate.set()

    asyncio.run(main())
    points = curve("evals")
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8, 5: 1.0}
    assert sorted(told) == [(0, 0.0), (2, 0.4), (4, 0.8), (5, 1.0)]
    assert points[0].lag_steps == 5
    assert points[-1].final
    runs = [EvalReport.load(home / (point.run or "")) for point in points]
    assert [run.summary["mean"] for run in runs] == [0.0, 0.4, 0.8, 1.0]
    assert set(logged()) == {0, 2, 4}
    assert all(m == {"heldout/counting/scheduled": 1.0} for m in logged().values())


def asynchronous(**settings: Any) -> Any:
    ahead = train.AsyncConfig(max_steps_off_policy=9, groups_per_batch=2)
    return rl_config(6, eval_every=1, async_config=ahead, **settings)


@pytest.mark.parametrize("until", [4, 6])
def test_points_that_the_async_loop_passes_over_are_skips(service: FakeService, until: int) -> None:
    config = with_heldout(asynchronous(), evaluator())

    async def main() -> None:
        gate = service.gate = asyncio.Event()
        service.on_update = lambda updates: gate.set() if updates == until else None
        await train.main(config)
        await evaluate_final(config)

    asyncio.run(main())
    points = curve()
    assert [p.step for p in points] == [0, 1, 2, 3, 4, 5, 6]
    assert points[0].reward == 0.0
    assert points[1].reward is None
    assert "still waiting for an earlier eval" in (points[1].skipped or "")
    assert points[6].reward == 1.0


# --- Every evaluator of a training that goes on -------------------------------------------------


class Slow(SamplingClientEvaluator):
    """One of a user: waits for the gate, then says how many updates its weights have had."""

    def __init__(self, service: FakeService, fails: tuple[int, ...] = ()) -> None:
        self._service, self._fails = service, fails

    async def __call__(self, sampling_client: Any) -> dict[str, float]:
        if self._service.gate is not None:
            await self._service.gate.wait()
        if sampling_client.updates in self._fails:
            raise RuntimeError("no sandbox")
        return {"updates": float(sampling_client.updates)}


def rows(key: str, log_path: str = ".") -> dict[int, float]:
    return {line["step"]: line[key] for line in logged_rows(log_path) if key in line}


def metric(points: list[CurvePoint], label: str, name: str) -> dict[int, Any]:
    found = [p for p in points if p.label == label]
    return {p.step: None if p.summary is None else p.summary[f"metric_{name}"] for p in found}


async def trained(service: FakeService, main: Any, config: Any, n: int) -> None:
    """Train while every eval is held up, and let them go when the training is over."""
    service.gate = asyncio.Event()
    async with AsyncEvalDispatcher(run_dir="evals", max_pending=99):
        async with asyncio.timeout(120):  # a training that waits for its evals never ends
            await main(config)
        assert service.updates == n
        assert all(point.pending for point in read_points(Path("evals/curve.jsonl")))
        service.gate.set()


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {
            "stream_minibatch_config": train.StreamMinibatchConfig(
                groups_per_batch=2, num_minibatches=2
            )
        },
        {"async_config": train.AsyncConfig(max_steps_off_policy=9, groups_per_batch=2)},
    ],
    ids=["sync", "streamed", "async"],
)
def test_every_evaluator_is_routed_through_the_dispatcher_and_logged_at_its_step(
    service: FakeService, mode: dict[str, Any]
) -> None:
    config = rl_config(
        dataset_builder=ProblemsBuilder(batches=5, tests=2),  # so the loop has a test set's
        num_groups_to_log=1,
        **mode,
    )
    config = with_heldout(config, evaluator(), async_eval=True)
    # A config with another list of builders is still asynchronous.
    builders = [*config.evaluator_builders, lambda: Slow(service)]
    config = chz.replace(config, evaluator_builders=builders)
    # The gate holds greedy requests; those of the test set are sampled.
    service.hold_sampled = lambda prompt: "n=3" in prompt
    asyncio.run(trained(service, train.main, config, 5))
    points = curve("evals")
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8}
    assert metric(points, "Slow", "updates") == {0: 0.0, 2: 2.0, 4: 4.0}
    assert sorted(p.step for p in points if p.label == "test") == [0, 2, 4]
    assert all(p.has_result for p in points)
    # The loop's own logger has the same, at the same steps.
    assert rows("updates") == {0: 0.0, 2: 2.0, 4: 4.0}
    assert rows("heldout/counting/reward") == {0: 0.0, 2: 0.4, 4: 0.8}
    assert sorted(rows("test/env/all/reward/total")) == [0, 2, 4]
    scheduled = {0: 1.0, 2: 1.0, 4: 1.0}
    assert rows("heldout/Slow/scheduled") == scheduled
    assert rows("heldout/test/scheduled") == scheduled
    # What the package writes of its own evals is there as well.
    assert Path("iteration_000002", "eval_test_rollout_summaries.jsonl").exists()


def test_the_supervised_loop_goes_on_too(service: FakeService) -> None:
    class Nll(TrainingClientEvaluator):
        async def __call__(self, training_client: Any) -> dict[str, float]:
            return {"nll": float(service.updates)}

    config = supervised_config(
        evaluator_builders=[lambda: Slow(service), Nll],
        infrequent_evaluator_builders=[lambda: Slow(service)],
        infrequent_eval_every=4,
    )
    config = with_heldout(config, evaluator(), async_eval=True)
    asyncio.run(trained(service, supervised.main, config, 6))
    points = curve("evals")
    steps = [0, 2, 4]
    assert metric(points, "Slow", "updates").keys() == {0, 2, 4}
    assert metric(points, "Slow-2", "updates").keys() == {0, 4}
    assert [p.step for p in points if p.label == "counting"] == steps
    assert sorted(rows("updates")) == steps
    # Weights of a training client change under an eval: that one is waited for.
    assert sorted(rows("nll")) == steps
    assert "Nll" not in {p.label for p in points}


def test_distillation_goes_on_too_and_keeps_its_prefix(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hard_targets(teachers: Any, data: Any, *_: Any) -> Any:
        return data

    monkeypatch.setattr(train_off_policy, "_collect_topk_batch", hard_targets)
    config = train_off_policy.Config(
        learning_rate=1e-4,
        dataset_configs=[
            train_off_policy.DatasetWithTeacher(
                dataset_builder=TextsBuilder(batches=6), teacher_config=TeacherConfig(base_model="")
            )
        ],
        model_name=MODEL,
        recipe_name="test",
        renderer_name="role_colon",
        batch_size=1,
        max_steps=5,
        eval_every=2,
        log_path=".",
        evaluator_builders=[lambda: Slow(service)],
    )
    config = with_heldout(config, evaluator(), async_eval=True)
    builders = [*config.evaluator_builders, lambda: Slow(service)]
    config = chz.replace(config, evaluator_builders=builders)
    asyncio.run(trained(service, train_off_policy.main, config, 5))
    points = curve("evals")
    assert metric(points, "Slow", "updates") == {0: 0.0, 2: 2.0, 4: 4.0}
    assert metric(points, "Slow-2", "updates") == {0: 0.0, 2: 2.0, 4: 4.0}
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8}
    assert rows("test/updates") == {0: 0.0, 2: 2.0, 4: 4.0}
    assert rows("test/heldout/counting/reward") == {0: 0.0, 2: 0.4, 4: 0.8}


def test_an_evaluator_of_a_user_that_fails_is_a_skip_and_not_the_end(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    config = rl_config(evaluator_builders=[lambda: Slow(service, fails=(2,))])
    config = with_heldout(config, async_eval=True)
    asyncio.run(trained(service, train.main, config, 5))
    points = curve("evals")
    assert metric(points, "Slow", "updates") == {0: 0.0, 2: None, 4: 4.0}
    assert "no sandbox" in (points[1].skipped or "")
    assert rows("updates") == {0: 0.0, 4: 4.0}
    assert rows("heldout/Slow/skipped") == {2: 1.0}
    assert "eval 'Slow' of step 2 failed" in Path("logs.log").read_text()


def test_the_loops_logger_is_open_until_the_evals_are_drained(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    current: ContextVar[Any] = ContextVar("current")

    class Recording(ml_log.JsonLogger):
        """Keeps its run as a matter of context, as trackio does."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            current.set(self)

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            assert current.get() is self
            seen.append(("updates" in metrics, step))
            super().log_metrics(metrics, step)

        def close(self) -> None:
            assert current.get() is self
            seen.append("closed")

    monkeypatch.setattr(ml_log, "JsonLogger", Recording)
    config = rl_config(evaluator_builders=[lambda: Slow(service)])
    config = with_heldout(config, async_eval=True)

    async def main() -> None:
        await trained(service, train.main, config, 5)
        assert seen[-1] == "closed"  # when the block has ended, not at some later time

    asyncio.run(main())
    assert [s for s in seen if s == "closed" or s[0]] == [
        *((True, step) for step in (0, 2, 4)),
        "closed",
    ]


def test_evals_that_need_the_rollout_executor_of_a_loop_that_has_ended_are_skips(
    service: FakeService,
) -> None:
    config = rl_config(
        dataset_builder=ProblemsBuilder(batches=5, tests=2),
        evaluator_builders=[lambda: Slow(service)],
    )
    config = with_heldout(config, async_eval=True)

    async def main() -> None:
        service.gate = asyncio.Event()
        # One at a time, and the first waits for the gate: the test set's come after the loop.
        async with AsyncEvalDispatcher(run_dir="evals", max_pending=99, max_running=1):
            await train.main(config, rollout_executor=ThreadPoolExecutor(1))
            assert service.updates == 5
            service.gate.set()

    asyncio.run(main())
    points = curve("evals")
    assert metric(points, "Slow", "updates") == {0: 0.0, 2: 2.0, 4: 4.0}
    late = [p.skipped for p in points if p.label == "test"]
    assert len(late) == 3
    assert all("after shutdown" in str(reason) for reason in late)


def test_by_default_training_goes_on_where_evals_pile_up(service: FakeService) -> None:
    config = rl_config(batches=12, eval_every=1, evaluator_builders=[lambda: Slow(service)])
    config = with_heldout(config, async_eval=True)

    async def main() -> None:
        service.gate = asyncio.Event()
        async with AsyncEvalDispatcher(run_dir="evals"):
            await train.main(config)
            service.gate.set()

    asyncio.run(main())
    points = curve("evals")
    assert [p.step for p in points] == list(range(12))  # a line each
    assert [p.step for p in points if p.has_result] == list(range(8))
    assert all("max_pending=8" in (p.skipped or "") for p in points[8:])
    assert rows("heldout/Slow/skipped") == dict.fromkeys(range(8, 12), 1.0)


def test_points_that_the_async_loop_passes_over_are_skips_of_any_evaluator(
    service: FakeService,
) -> None:
    asked_at: set[int] = set()

    class Watched(Slow):
        async def __call__(self, sampling_client: Any) -> dict[str, float]:
            asked_at.add(sampling_client.updates)
            return await super().__call__(sampling_client)

    async def wait_for_evals(update: int) -> None:
        # Else training may be over before the evaluation loop goes on.
        while update == 5 and max(asked_at) < 4:
            await asyncio.sleep(0)

    config = asynchronous(evaluator_builders=[lambda: Watched(service)])
    config = with_heldout(config, async_eval=True)

    async def main() -> None:
        gate = service.gate = asyncio.Event()
        service.on_update = lambda updates: gate.set() if updates == 4 else None
        service.before_update = wait_for_evals
        waits = AsyncEvalDispatcher(run_dir="evals", max_pending=1, when_full="wait", max_running=1)
        async with waits:
            await train.main(config)

    asyncio.run(main())
    points = curve("evals")
    last = points[-1].step
    assert last >= 4
    assert [p.step for p in points] == list(range(last + 1))
    assert "still waiting for an earlier eval" in (points[2].skipped or "")


def test_async_eval_without_a_dispatcher_is_refused_as_the_training_begins(
    service: FakeService,
) -> None:
    config = with_heldout(rl_config(), async_eval=True)
    with pytest.raises(InvalidInput, match="AsyncEvalDispatcher"):
        asyncio.run(train.main(config))


def test_a_training_that_did_not_ask_for_it_waits_for_its_evaluators(service: FakeService) -> None:
    asked = rl_config(log_path="asked", evaluator_builders=[lambda: Slow(service)])
    other = rl_config(log_path="other", evaluator_builders=[lambda: Slow(service)])

    async def main() -> None:
        async with AsyncEvalDispatcher(run_dir="evals"):
            await train.main(with_heldout(asked, async_eval=True))
            service.updates = 0
            await train.main(other)

    asyncio.run(main())
    assert len(curve("evals")) == 3
    assert rows("heldout/Slow/scheduled", "asked") != {}
    assert rows("heldout/Slow/scheduled", "other") == {}
    assert rows("updates", "other") == {0: 0.0, 2: 2.0, 4: 4.0}


# --- Loops of the user's own --------------------------------------------------------------------


@pytest.mark.parametrize("gives_config", [False, True])
def test_a_loop_that_does_not_set_up_logging_with_its_config_is_told_once_that_evals_are_inline(
    service: FakeService, caplog: pytest.LogCaptureFixture, gives_config: bool
) -> None:
    log_path = f"own-{gives_config}"
    config = rl_config(log_path=log_path, evaluator_builders=[lambda: Slow(service)] * 2)
    config = with_heldout(config, async_eval=True)

    async def main() -> None:
        async with AsyncEvalDispatcher(run_dir="evals"):
            arguments = (None, None, config) if gives_config else ()
            ml_log.setup_logging(log_path, *arguments, do_configure_logging_module=False)
            evaluators = [build() for build in config.evaluator_builders]
            for step in range(2):
                for i, each in enumerate(evaluators):
                    client = FakeSampling(service, step)
                    found = await train.run_single_evaluation(each, config, step, client, f"{i}")
                    assert ("updates" in found) is not gives_config

    asyncio.run(main())
    said = [r.getMessage() for r in caplog.records if "async_eval=True" in r.getMessage()]
    if gives_config:
        assert said == []
        steps = [(p.label, p.step) for p in curve("evals")]
        assert sorted(steps) == [("Slow", 0), ("Slow", 1), ("Slow-2", 0), ("Slow-2", 1)]
    else:
        assert said == [
            "async_eval=True, but the training loop has not called "
            "ml_log.setup_logging(config=config) before: evaluators of own-False run inline, and "
            "training waits for them"
        ]
        assert curve("evals") == []


def test_a_loop_without_a_dispatcher_is_told_that_a_heldout_evaluator_is_inline(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    config = with_heldout(rl_config(log_path="alone"), evaluator(), async_eval=True)
    [build] = config.evaluator_builders
    build(), build()
    said = [r.getMessage() for r in caplog.records if "async_eval=True" in r.getMessage()]
    assert len(said) == 1
    assert "there is no `async with AsyncEvalDispatcher(run_dir=…):`" in said[0]


def test_a_logger_of_the_package_is_a_logger_of_the_dispatcher_and_a_drain_may_be_awaited(
    service: FakeService,
) -> None:
    counting = evaluator(step=lambda: 5)

    async def main() -> Any:
        logger = ml_log.setup_logging(".", do_configure_logging_module=False)
        async with AsyncEvalDispatcher(run_dir="evals", loggers=[logger]) as dispatcher:
            await counting(FakeSampling(service, 5))
            drained = await dispatcher.drain()
        logger.log_metrics({"loss": 0.5}, step=6)  # still the loop's own
        return drained

    assert asyncio.run(main()).finished == [("counting", 5)]
    assert rows("counting/reward") == {5: 1.0}
    assert rows("loss") == {6: 0.5}


# --- The last weights ---------------------------------------------------------------------------


def test_last_weights_that_have_a_result_are_not_measured_again(service: FakeService) -> None:
    config = with_heldout(rl_config(), evaluator())
    finish(config)
    asked = len(service.asked)
    assert asyncio.run(evaluate_final(config)) == {}
    # The same training, started again after its end.
    assert finish(with_heldout(rl_config(), evaluator())) == {}
    assert len(service.asked) == asked
    assert len(read_points(Path("heldout/curve.jsonl"))) == 4


def test_an_async_loop_that_discards_stale_samples_ends_at_the_step_it_has_reached(
    service: FakeService,
) -> None:
    on_policy = train.AsyncConfig(max_steps_off_policy=0, groups_per_batch=2)
    batches, every = 12, 2
    config = with_heldout(
        rl_config(batches=batches, eval_every=every, async_config=on_policy), evaluator()
    )

    async def main() -> None:
        async with AsyncEvalDispatcher(run_dir="evals", max_pending=99):
            await train.main(config)
            await evaluate_final(config)
            await evaluate_final(config)  # what it has logged is no step of the training

    asyncio.run(main())
    checkpoints = Path("checkpoints.jsonl").read_text().splitlines()
    assert json.loads(checkpoints[-1])["batch"] == batches
    assert service.updates < batches - every  # so there are steps that were never reached
    points = curve("evals")
    assert (points[-1].step, points[-1].final) == (service.updates, True)
    assert [p.skipped for p in points] == [None] * len(points)


def test_a_checkpoint_that_cannot_be_sampled_from_is_passed_over(service: FakeService) -> None:
    config = with_heldout(rl_config(), evaluator())

    async def main() -> None:
        await train.main(config)
        with Path("checkpoints.jsonl").open("a") as file:
            file.write('{"name": "000009", "batch": 9, "state_path": "tinker://x"}\n')
        await evaluate_final(config)

    asyncio.run(main())
    assert rewards(curve()) == {0: 0.0, 2: 0.4, 4: 0.8, 5: 1.0}


def test_another_training_with_the_same_config_is_measured_anew(service: FakeService) -> None:
    config = with_heldout(rl_config(), evaluator())
    finals = []
    for _ in range(2):
        service.updates = 0
        finals.append(untimed(finish(config)))
        Path("checkpoints.jsonl").unlink()
    assert finals[0] == finals[1]
    assert finals[0]["heldout/counting/reward"] == 1.0
    points = read_points(Path("heldout/curve.jsonl"))
    assert [(p.step, p.skipped) for p in points] == [(s, None) for s in (0, 2, 4, 5)] * 2
    assert len(curve()) == 4


@pytest.mark.parametrize("waits", [True, False])
def test_a_last_step_that_the_loop_has_measured_is_not_measured_again(
    service: FakeService, *, waits: bool
) -> None:
    counting = evaluator()
    config = with_heldout(rl_config(), counting)

    async def main() -> dict[str, float]:
        await train.main(config)
        # As the async loop does, if its evaluation loop is in time for it.
        last = counting(FakeSampling(service, 5))
        await asyncio.create_task(last, name="eval_0_iteration_000005")
        return await evaluate_final(config)

    async def beside() -> dict[str, float]:
        service.gate = asyncio.Event()
        async with AsyncEvalDispatcher(run_dir="heldout", max_pending=9):
            final = await main()
            service.gate.set()
            return final

    assert asyncio.run(main() if waits else beside()) == {}
    assert rewards(curve()) == {0: 0.0, 2: 0.4, 4: 0.8, 5: 1.0}
    assert len(service.asked) == 40


def test_last_weights_that_cannot_be_had_are_a_skip(service: FakeService) -> None:
    config = with_heldout(rl_config(), evaluator())

    async def main() -> dict[str, float]:
        await train.main(config)
        service.saved.clear()
        return await evaluate_final(config)

    assert asyncio.run(main()) == {"heldout/counting/skipped": 1.0}
    last = curve()[-1]
    assert (last.step, last.reward) == (5, None)
    assert "sampling client" in (last.skipped or "")


def test_there_has_to_be_something_to_measure(service: FakeService) -> None:
    with pytest.raises(InvalidInput, match="has no HeldoutEvaluator"):
        asyncio.run(evaluate_final(rl_config()))
    with pytest.raises(InvalidInput, match="no checkpoint with sampler weights"):
        asyncio.run(evaluate_final(with_heldout(rl_config(), evaluator())))


def test_a_training_that_is_resumed_goes_on_with_its_curve(service: FakeService) -> None:
    asyncio.run(train.main(with_heldout(rl_config(max_steps=4), evaluator())))
    assert rewards(curve()) == {0: 0.0, 2: 0.4}
    asyncio.run(train.main(with_heldout(rl_config(), evaluator())))
    points = curve()
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8}
    assert all(p.skipped is None for p in points)


# --- Before the save or after it ----------------------------------------------------------------

CRASHES = """
import asyncio, os, sys
import tinker
from heldout.integrations.tinker import with_heldout
from tests.integration import test_tinker as here

loop, dies_at = sys.argv[1], int(sys.argv[2])
service = here.FakeService()
tinker.ServiceClient = service
# As a driver does, or the kernel's out-of-memory killer. Only evals are greedy.
service.fails = lambda updates: os._exit(9) if updates == dies_at else None
if loop == "rl":
    config, main = here.rl_config(7), here.train.main
else:
    config, main = here.supervised_config(save_every=2), here.supervised.main
asyncio.run(main(with_heldout(config, here.evaluator())))
"""


@pytest.mark.parametrize(
    ("loop", "saved"), [("rl", ["000002", "000004"]), ("supervised", ["000002"])]
)
def test_the_rl_loop_saves_a_step_before_it_evaluates_it_and_the_supervised_one_after(
    loop: str, saved: list[str]
) -> None:
    died = subprocess.run(
        [sys.executable, "-c", CRASHES, loop, "4"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert died.returncode == 9, died.stdout
    lines = Path("checkpoints.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == saved
    assert rewards([p for p in curve() if p.has_result]) == {0: 0.0, 2: 0.4}


# --- Steps --------------------------------------------------------------------------------------


def supervised_config(**settings: Any) -> Any:
    defaults = {"eval_every": 2, "save_every": 3, "num_epochs": 1}
    return supervised.Config(
        log_path=".",
        model_name=MODEL,
        recipe_name="test",
        dataset_builder=TextsBuilder(batches=6),
        **{**defaults, **settings},
    )


def test_the_supervised_loop_is_counted(service: FakeService) -> None:
    finish(with_heldout(supervised_config(), evaluator()), supervised.main)
    points = curve()
    assert rewards(points) == {0: 0.0, 2: 0.4, 4: 0.8, 6: 1.0}
    assert [(p.decoding or {})["step_from"] for p in points] == ["count"] * 3 + ["checkpoint"]
    assert set(logged()) == {0, 2, 4}


def test_a_supervised_training_that_is_resumed_is_counted_from_there(service: FakeService) -> None:
    class Stop(Exception):
        pass

    def stop(updates: int) -> None:
        if updates == 6:
            raise Stop

    service.on_update = stop
    config = supervised_config()
    with pytest.raises(Stop):
        asyncio.run(supervised.main(with_heldout(config, evaluator())))
    service.on_update = lambda updates: None
    asyncio.run(supervised.main(with_heldout(config, evaluator())))
    points = curve()
    assert [p.step for p in points] == [0, 2, 4]
    assert points[2].run == "steps/00000004-counting-2"  # what was measured before the stop is 4
    assert sorted(logged()) == [0, 2, 4]


def test_a_checkpoint_of_which_nobody_knows_the_step_needs_to_be_told(service: FakeService) -> None:
    config = with_heldout(supervised_config(), evaluator())

    async def main() -> None:
        await supervised.main(config)
        Path("metrics.jsonl").unlink()
        with pytest.raises(InvalidInput, match="evaluate_final\\(config, step=…\\)"):
            await evaluate_final(config)
        await evaluate_final(config, step=6)

    asyncio.run(main())
    last = curve()[-1]
    assert (last.step, (last.decoding or {})["step_from"]) == (6, "given")


def test_only_loops_that_evaluate_at_every_multiple_and_nowhere_else_are_counted() -> None:
    counted = (supervised.Config, train_on_policy.Config, train_off_policy.Config, sdft.Config)
    assert [is_counted(each) for each in counted] == [True] * 4
    # DPO evaluates its last step, too: a count would put that at the next multiple.
    assert not is_counted(train_dpo.Config)
    assert not is_counted(train.Config)


def test_without_a_step_there_is_a_result_and_no_point(service: FakeService) -> None:
    alone = evaluator(run_dir=".")

    async def main() -> dict[str, float]:
        async with AsyncEvalDispatcher(run_dir="evals"):
            return await alone(FakeSampling(service, 3))

    metrics = asyncio.run(main())
    assert metrics["heldout/counting/reward"] == pytest.approx(0.6)
    assert not Path("curve.jsonl").exists()
    assert curve("evals") == []


def test_a_step_that_the_loop_traces_is_taken() -> None:
    async def main() -> LoopStep | None:
        context = trace.ScopeContext({"step": 12, "evaluator_name": "HeldoutEvaluator"})
        token = trace.trace_context.set(context)
        try:
            return Cadence(5, 0, counted=True).next_step()
        finally:
            trace.trace_context.reset(token)

    assert asyncio.run(main()) == LoopStep(12, "trace")


def test_weights_are_said_to_be_saved_only_where_they_are() -> None:
    records = [
        {"name": "000002", "batch": 2, "state_path": "a", "sampler_path": "b"},
        {"name": "000003", "batch": 3, "state_path": "c"},
        {"name": "000004", "batch": 4, "epoch": 0, "state_path": "d", "sampler_path": "e"},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    Path("checkpoints.jsonl").write_text(lines)
    found = [sampler_path(".", step) for step in range(5)]
    assert found == [None, None, "b", None, None]


def test_steps_that_were_due_are_known() -> None:
    assert Cadence(5, 0).missed(None, 10) == [0, 5]
    assert Cadence(5, 3).missed(None, 10) == [5]
    assert Cadence(5, 0).missed(5, 6) == []
    assert Cadence(5, 0).missed(7, 15) == [10]
    assert Cadence(0, 0).missed(None, 10) == []
    assert Cadence(5, None).missed(None, 10) == []
    counted = Cadence(5, 7, counted=True)

    async def calls() -> list[LoopStep | None]:
        return [counted.next_step() for _ in range(2)]

    assert asyncio.run(calls()) == [LoopStep(10, "count"), LoopStep(15, "count")]


def test_a_counter_that_goes_back_is_another_start_for_all_evals_of_the_curve(
    service: FakeService,
) -> None:
    at = {"step": 0}
    first = evaluator("one", run_dir=".", step=lambda: at["step"])
    second = evaluator("two", run_dir=".", step=lambda: at["step"])
    for step in (0, 4, 2):
        at["step"] = step
        for each in (first, second):
            asyncio.run(each(FakeSampling(service, step)))
    assert [(p.label, p.step) for p in curve(".")] == [
        ("one", 0),
        ("two", 0),
        ("one", 2),
        ("two", 2),
    ]


# --- Turns with tools ---------------------------------------------------------------------------


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def with_tools(service: FakeService, policy: Callable[[str, int], str]) -> dict[str, float]:
    service.policy, service.end = policy, "<|im_end|>"

    def doubled(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("right", trajectory.answer == "14", weight=1.0),))

    tooled = HeldoutEvaluator(
        [Sample("a", {"question": "Twice 7?"})],
        doubled,
        renderer("qwen3_disable_thinking"),
        name="tools",
        max_tokens=200,
        environment_factory=lambda sample: ToolEnvironment([double], in_threads=False),
    )
    return asyncio.run(tooled(FakeSampling(service, 5)))


def test_tools_are_called_the_way_the_renderer_has_it(service: FakeService) -> None:
    prompts: list[str] = []

    def policy(prompt: str, updates: int) -> str:
        prompts.append(prompt)
        found = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt)
        if found:
            return str(found[-1])
        call = '<tool_call>\n{"name": "double", "arguments": {"number": 7}}\n</tool_call>'
        return f"<think>\nI ask.\n</think>\n\n{call}"

    metrics = with_tools(service, policy)
    assert metrics["heldout/tools/reward"] == 1.0
    assert "heldout/tools/reward_stderr" not in metrics  # of one sample there is none
    assert '"name": "double"' in prompts[0]
    assert "<tool_response>\n14\n</tool_response>" in prompts[1]


def test_a_call_that_cannot_be_read_is_answered_and_not_lost(service: FakeService) -> None:
    prompts: list[str] = []

    def policy(prompt: str, updates: int) -> str:
        prompts.append(prompt)
        return "14" if len(prompts) > 1 else "<tool_call>\n{not json}\n</tool_call>"

    assert with_tools(service, policy)["heldout/tools/reward"] == 1.0
    assert prompts[1].index("{not json}") < prompts[1].index("<tool_response>")


def test_a_turn_has_its_reasoning_its_calls_and_why_it_ended(service: FakeService) -> None:
    call = '<tool_call>\n{"name": "double", "arguments": {"number": 7}}\n</tool_call>'
    service.policy = lambda prompt, updates: f"<think>\nI ask.\n</think>\n\n{call}"
    service.end = "<|im_end|>"
    endpoint = TinkerEndpoint(FakeSampling(service, 5), renderer("qwen3"), max_tokens=200)
    [tool] = ToolEnvironment([double]).tools
    earlier = [
        Message("user", "Twice 7?"),
        Message("assistant", "", tool_calls=(ToolCall("call00000", "double", '{"number": 6}'),)),
        Message("tool", "12", tool_call_id="call00000"),
    ]
    turn = asyncio.run(endpoint.complete(earlier, Sampling(), [tool]))
    assert turn.finish_reason == "tool_calls"
    assert (turn.message.reasoning or "").strip() == "I ask."
    [made] = turn.message.tool_calls
    assert (made.id, made.name) == ("call00001", "double")
    assert json.loads(made.arguments) == {"number": 7}
    assert "think" not in turn.message.text


def test_messages_are_those_of_the_renderer() -> None:
    nameless = ToolCall("call00001", "", '{"number": 7}')
    given = [
        Message("user", [{"type": "text", "text": "Twice?"}]),
        Message(
            "assistant",
            "So:",
            reasoning="I ask.",
            tool_calls=(ToolCall("call00000", "double", "{}"), nameless),
        ),
        Message("tool", "14", tool_call_id="call00000"),
    ]
    user, assistant, tool = to_renderer_messages(given, (), renderer("qwen3"))
    assert user == {"role": "user", "content": [{"type": "text", "text": "Twice?"}]}
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "I ask."},
        {"type": "text", "text": "So:"},
        {"type": "text", "text": '{"number": 7}'},
    ]
    assert [c.function.name for c in assistant["tool_calls"]] == ["double"]
    assert tool == {
        "role": "tool",
        "content": "14",
        "tool_call_id": "call00000",
        "name": "double",
    }
    with pytest.raises(EndpointError, match="text and images, got 'input_audio'"):
        to_renderer_messages([Message("user", [{"type": "input_audio"}])], (), renderer())


def test_a_renderer_that_knows_no_tools_says_so(service: FakeService) -> None:
    plain = evaluator(
        step=lambda: 1,
        run_dir=".",
        environment_factory=lambda sample: ToolEnvironment([double]),
    )
    assert untimed(asyncio.run(plain(FakeSampling(service, 5)))) == SKIPPED
    [point] = curve(".")
    assert "RoleColonRenderer has no format for tools" in (point.skipped or "")


# --- The package, and the page ------------------------------------------------------------------


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: "0.50.1")
    with pytest.raises(InvalidInput, match=r"tinker-cookbook 0.50.1 .*takes >=0\.5\.8,<0\.6"):
        importlib.reload(integration)


def test_the_clients_of_the_service_take_what_the_fakes_take() -> None:
    sample = inspect.signature(tinker.SamplingClient.sample_async)
    sample.bind(None, prompt=1, num_samples=1, sampling_params=1)
    create = inspect.signature(REAL_SERVICE.create_sampling_client_async)
    create.bind(None, model_path="tinker://…")
    inspect.signature(REAL_SERVICE).bind(base_url=None)


def test_the_example_of_the_module_runs(service: FakeService) -> None:
    example = textwrap.dedent(re.findall(r"(?:^    .*\n)+", integration.__doc__ or "", re.M)[0])
    names = {**vars(integration), "train": train}
    names |= {"AsyncEvalDispatcher": AsyncEvalDispatcher, "samples": SAMPLES, "score_fn": right}
    names |= {"renderer": renderer()}
    example = example.replace("…", repr("evals"))
    exec(f"async def main(config):\n{textwrap.indent(example, '    ')}", names)
    asyncio.run(names["main"](rl_config()))
    assert rewards(curve("evals"), "capitals") == {0: 0.0, 2: 0.4, 4: 0.8, 5: 1.0}


def test_the_code_blocks_of_the_page_run(
    service: FakeService,
) -> None:
    page = Path(__file__).parents[2] / "docs" / "tinker.md"
    register_tokenizer("Qwen/Qwen3-8B", tokenizer)
    capitals = {"France": "Paris", "Chad": "N'Djamena"}
    service.end = "<|im_end|>"
    service.policy = lambda prompt, updates: next(
        (capitals[c] for c in capitals if c in prompt and updates > 1), "100"
    )
    namespace = {"__name__": "__docs__", "my_dataset": ProblemsBuilder(batches=5)}
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        exec(compile(code, str(page), "exec"), namespace)
    assert rewards(curve("outputs/run1"), "capitals") == {0: 0.0, 4: 1.0, 5: 1.0}
