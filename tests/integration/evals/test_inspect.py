"""Against the real Inspect: its results where it reports right, errors where it would not."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import inspect_ai
import numpy as np
import pytest
from inspect_ai import Epochs, Task, task_with
from inspect_ai.agent import react
from inspect_ai.dataset import FieldSpec, MemoryDataset, example_dataset
from inspect_ai.dataset import Sample as InspectSample
from inspect_ai.model import GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import (
    Score,
    accuracy,
    bootstrap_stderr,
    choice,
    includes,
    match,
    mean,
    metric,
    model_graded_fact,
    model_graded_qa,
    scorer,
    stderr,
    value_to_float,
)
from inspect_ai.solver import (
    Generate,
    TaskState,
    generate,
    multiple_choice,
    self_critique,
    solver,
    system_message,
    use_tools,
)
from inspect_ai.tool import tool
from inspect_ai.util import EarlyStop, registry_create

import heldout
from heldout import Completion, Message
from heldout.adapters.inspect import from_inspect
from heldout.adapters.inspect.messages import to_heldout_messages, to_model_output
from heldout.adapters.inspect.values import score_outcome
from heldout.adapters.logs import import_log
from heldout.adapters.tasks import list_tasks, load_task
from heldout.analysis import compare
from heldout.cli.main import run_cli
from heldout.errors import EvalFailed, InvalidInput, NotComparable
from heldout.store.report import EvalReport
from heldout.types import ToolCall
from tests.integration.evals.inspect_peer import (
    USAGE,
    as_grader,
    own_name,
    run_here,
    run_theirs,
)
from tests.test_docs import blocks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # packages that inspect_evals imports use deprecated things
    import_module("inspect_evals._registry")

pytestmark = [
    pytest.mark.anyio,
    # Of tenacity, as Inspect calls it.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    # It does not close the stream of a sample's events.
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <function Memory:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def streams_collected_here() -> Iterator[None]:
    """Not later, where a test of something else would be blamed for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


QUESTIONS = [InspectSample(id=i, input=f"Question {i}?", target="ANSWER: A") for i in range(6)]


@tool
def add():  # type: ignore[no-untyped-def]
    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: First.
            y: Second.
        """
        return x + y

    return execute


# --- The same results as Inspect ----------------------------------------------------------------

GRADES = ("GRADE: C", "GRADE: I")


FIELDS = {
    "popularity": FieldSpec(input="question", target="answer_matching_behavior"),
    "biology_qa": FieldSpec(input="question", target="answer"),
}


def example(name: str, how: Any = None, by: Any = None) -> Callable[[], Task]:
    def make() -> Task:
        return Task(
            example_dataset(name, FIELDS.get(name))[:8],
            solver=how or generate(),
            scorer=by or model_graded_fact(),
        )

    return make


def of_inspect_evals(name: str, **parameters: Any) -> Callable[[], Task]:
    def make() -> Task:
        given = {key: value() for key, value in parameters.items()}
        return registry_create("task", f"inspect_evals/{name}", **given)  # type: ignore[no-any-return]

    return make


JUDGE = {"grader": tuple(f'{{"reasoning": "r", "score": {n}, "rating": {n}}}' for n in (1, 2, 3))}
TASKS = {
    "theory_of_mind": (example("theory_of_mind", [system_message("Hm."), generate()]), GRADES),
    "popularity": (example("popularity", by=match(location="any")), None),
    "security_guide": (example("security_guide", by=[includes(), model_graded_qa()]), GRADES),
    "bias_detection": (example("bias_detection", by=includes()), None),
    "biology_qa": (
        example("biology_qa", by=model_graded_qa(partial_credit=True)),
        (*GRADES, "GRADE: P"),
    ),
    "choices": (
        lambda: Task(
            [
                InspectSample(id=i, input=f"{i}?", choices=["1", "2", "3"], target="B")
                for i in range(8)
            ],
            solver=multiple_choice(),
            scorer=choice(),
        ),
        None,
    ),
    "tools": (
        lambda: Task(QUESTIONS, solver=[use_tools(add()), generate()], scorer=includes()),
        None,
    ),
    "agent_threat_bench_memory_poison": (
        of_inspect_evals("agent_threat_bench_memory_poison"),
        None,
    ),
    "agent_threat_bench_autonomy_hijack": (
        of_inspect_evals("agent_threat_bench_autonomy_hijack"),
        None,
    ),
    "agent_threat_bench_data_exfil": (of_inspect_evals("agent_threat_bench_data_exfil"), None),
    "agentic_misalignment": (
        of_inspect_evals(
            "agentic_misalignment", grader_model=lambda: as_grader("<answer>yes</answer>")
        ),
        None,
    ),
    "writingbench": (
        of_inspect_evals(
            "writingbench",
            judge_model=lambda: as_grader(*(f'{{"score": {n}}}' for n in (3, 7, 10))),
        ),
        None,
    ),
    "persistbench_cross_domain": (of_inspect_evals("persistbench_cross_domain"), JUDGE),
    "persistbench_sycophancy": (of_inspect_evals("persistbench_sycophancy"), JUDGE),
    "persistbench_beneficial_memory": (of_inspect_evals("persistbench_beneficial_memory"), JUDGE),
}


def inspects_means(log: Any) -> dict[str, float]:
    """The means of Inspect's own report, by what heldout calls their metrics."""
    return {
        each.name if each.name == each.scorer else f"{each.scorer}.{each.name}": metric.value
        for each in log.results.scores
        for name, metric in each.metrics.items()
        if name in ("accuracy", "mean")
    }


WITHOUT_MEANS = {name for name in TASKS if name.startswith("persistbench_")}
"""Tasks whose only metric is a rate of their own."""


@pytest.mark.parametrize("name", TASKS)
async def test_scores_are_those_of_inspects_own_runner(name: str, tmp_path: Path) -> None:
    make, grading = TASKS[name]
    roles = grading if isinstance(grading, dict) else {"grader": grading} if grading else {}
    models = {role: as_grader(*verdicts) for role, verdicts in roles.items()}
    inspect_task, limit = make(), 8
    report = await run_here(
        from_inspect(inspect_task, model_roles=models), tmp_path, max_samples=limit, max_turns=30
    )
    log = await run_theirs(inspect_task, tmp_path, limit, model_roles=models, epochs=1)
    theirs = {str(sample.id): sample for sample in log.samples}
    assert len(report.results) == len(theirs) > 0
    for result in report.results:
        sample = theirs[result.sample_id]
        assert (result.error, sample.error) == (None, None)
        given = result.trajectory.outcome["scores"]
        assert {key: score["value"] for key, score in given.items()} == {
            key: score.value for key, score in sample.scores.items()
        }
        assert [m.text for m in result.trajectory.messages if m.role != "assistant"] == [
            own_name(m.text) for m in sample.messages if m.role != "assistant"
        ] or name in ("choices",)
        for key, score in sample.scores.items():
            if not isinstance(score.value, dict):
                assert result.score[key] == value_to_float()(score.value)
    means = inspects_means(log)
    named = {m.name for result in report.results for m in result.score.metrics} & means.keys()
    assert named or name in WITHOUT_MEANS
    for key in named:
        assert report.summary[f"metric_{key}"] == pytest.approx(means[key], rel=1e-12)


# --- What Inspect would report wrong ------------------------------------------------------------


def scoring(give: Callable[[TaskState], Any], name: str = "given") -> Any:
    @scorer(metrics=[accuracy(), bootstrap_stderr()], name=name)
    def make() -> Any:
        async def score(state: TaskState, target: Any) -> Any:
            given = give(state)
            return await given if asyncio.iscoroutine(given) else given

        return score

    return make()


def solving(code: Callable[[TaskState, Generate], Any]) -> Any:
    @solver
    def coded() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            return await code(state, generate) or state

        return solve

    return coded()


async def times_out(state: TaskState, generate: Generate) -> None:
    await generate(state)
    raise TimeoutError("a server of its own")


async def raises(state: TaskState, generate: Generate) -> None:
    raise KeyError("column")


async def asks_twice(state: TaskState, generate: Generate) -> None:
    await asyncio.gather(generate(state), generate(state), return_exceptions=True)


async def asks_itself(state: TaskState) -> Score:
    try:
        await get_model(role="grader").generate("Is it right?")
    except Exception:
        return Score(value="I")
    raise AssertionError


async def goes_on(state: TaskState, generate: Generate) -> TaskState:
    while True:
        state = await generate(state)
        state.messages.append(state.user_prompt.model_copy(update={"id": None, "content": "On."}))


def exits(*_: Any) -> None:
    sys.exit("no license")


async def exits_in_a_tool(state: TaskState, generate: Generate) -> None:
    await generate(state)
    async with anyio.create_task_group() as group:
        group.start_soon(solving_exit)


async def exits_unwatched(state: TaskState, generate: Generate) -> TaskState:
    unwatched.append(asyncio.create_task(solving_exit()))
    return await generate(state)


async def solving_exit() -> None:
    exits()


unwatched: list[asyncio.Task[None]] = []


async def exits_at_once(state: TaskState, generate: Generate) -> None:
    exits()


def task_of(how: Any = None, by: Any = None, **settings: Any) -> Task:
    return Task(QUESTIONS[:2], solver=how or generate(), scorer=by or includes(), **settings)


def gives(value: Any) -> Task:
    return task_of(by=scoring(lambda state: value))


WRONG = [
    (
        gives(Score(value="maybe")),
        "the score is 'maybe', which is no number",
    ),
    (gives(Score(value=[1, 0])), "there is no score"),
    (gives(Score(value=float("inf"))), "the score is inf, which is no number"),
    (gives(None), "scorer given gave no score"),
    (gives(Score.unscored()), "unscored: the scorer gives no reason"),
    (gives(Score.unscored(reason="grader_failed")), "unscored: grader_failed"),
    (gives(Score(value={"a": 1, "b": 0})), "no score 'given' to be the reward; there are given.a"),
    (task_of(by=scoring(lambda state: 1 / 0)), "ZeroDivisionError"),
    (task_of(by=scoring(asks_itself)), "a scorer asks the evaluated model"),
    (task_of(solving(times_out)), "let a TimeoutError out: a server of its own"),
    (task_of(solving(raises)), "KeyError('column')"),
    (task_of(solving(asks_twice)), " conversation"),
    (task_of([generate(), self_critique()]), "has rewritten message 0"),
    (task_of(config=GenerateConfig(num_choices=2)), "several choices"),
    (task_of(token_limit=1000), "does not say how many it used"),
]


@pytest.mark.parametrize(("wrong", "reason"), WRONG, ids=[reason for _, reason in WRONG])
async def test_what_inspect_would_report_wrong_is_an_error(
    wrong: Task, reason: str, tmp_path: Path
) -> None:
    async def silent(messages: list[Message], **_: Any) -> str:
        return "ANSWER: A"

    with pytest.raises(EvalFailed):
        await run_here(from_inspect(wrong), tmp_path, endpoint=silent)
    (folder,) = (tmp_path / "heldout").iterdir()
    for result in EvalReport.load(folder).results:
        assert reason in str(result.error)


@pytest.mark.parametrize(
    ("how", "by"),
    [(None, exits), (exits_at_once, None), (exits_in_a_tool, None)],
    ids=["scorer", "solver", "group"],
)
async def test_code_that_exits_is_its_items_error_and_the_next_run_works(
    how: Any, by: Any, tmp_path: Path
) -> None:
    first = task_of(how and solving(how), by and scoring(by))
    begun = time.monotonic()
    with pytest.raises(EvalFailed, match="SystemExit: no license"):
        await run_here(from_inspect(first), tmp_path / "1", timeout=60.0)
    assert time.monotonic() - begun < 30
    assert (await run_here(from_inspect(task_of()), tmp_path / "2", timeout=60.0)).errors == []


async def test_an_event_loop_that_unwatched_code_ended_goes_on_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    definition = from_inspect(task_of(solving(exits_unwatched)))
    assert (await run_here(definition, tmp_path, timeout=60.0)).errors == []
    assert "code ended the event loop of heldout-inspect, which goes on: SystemExit" in caplog.text
    for task in unwatched:
        assert isinstance(task.exception(), SystemExit)


async def test_a_policy_that_fails_is_an_error_though_the_solver_takes_everything(
    tmp_path: Path,
) -> None:
    async def careless(state: TaskState, generate: Generate) -> None:
        try:
            await generate(state)
        except Exception:
            state.output.completion = "ANSWER: A"

    async def broken(messages: list[Message], **_: Any) -> str:
        if "Question 0" in messages[-1].text:
            raise RuntimeError("no GPU")
        return "ANSWER: A"

    definition = from_inspect(task_of(solving(careless)))
    report = await run_here(definition, tmp_path, endpoint=broken)
    assert [result.error_stage for result in report.results] == ["endpoint", None]
    assert report.results[1].score.reward == 1.0


async def says(messages: list[Message], **_: Any) -> Completion:
    return Completion(Message("assistant", "ANSWER: A. And then ANSWER: B"), "stop")


async def test_limits_end_the_solver_and_what_there_is_is_scored(tmp_path: Path) -> None:
    theirs = from_inspect(task_of(solving(goes_on), message_limit=5))
    (result, _) = (await run_here(theirs, tmp_path / "1", max_turns=None)).results
    assert result.trajectory.outcome["limit"] == {"type": "message", "limit": 5.0}
    assert (result.trajectory.stop.ended_by, result.error) == ("environment", None)
    ours = from_inspect(task_of(solving(goes_on)))
    (result, _) = (await run_here(ours, tmp_path / "2", max_turns=3, endpoint=says)).results
    assert result.trajectory.outcome["limit"]["type"] == "custom"
    assert (result.trajectory.stop.limit, result.score.reward) == ("max_turns", 1.0)


def counts_to_40(messages: list[Message], **_: Any) -> Completion:
    """Add up for 40 turns, then submit."""
    turn = sum(message.role == "assistant" for message in messages)
    name, given = ("add", {"x": turn, "y": 1}) if turn < 40 else ("submit", {"answer": "ANSWER: A"})
    call = ToolCall(f"call{turn}", name, json.dumps(given))
    return Completion(Message("assistant", "", (call,)), "tool_calls", USAGE)


async def test_an_agent_without_limits_has_as_many_turns_as_in_inspect(tmp_path: Path) -> None:
    def task() -> Task:
        return task_of(react(tools=[add()]))

    def outputs(input: Any, *_: Any) -> ModelOutput:
        turn = counts_to_40(to_heldout_messages(input))
        return to_model_output(turn, "mockllm/policy", "")

    model = get_model("mockllm/policy", custom_outputs=outputs)
    log = await run_theirs(task(), tmp_path, model=model)
    report = await run_here(
        from_inspect(task()),
        tmp_path,
        endpoint=counts_to_40,
        max_turns=None,
        experiment_name="ours",
    )
    theirs = {str(s.id): value_to_float()(s.scores["includes"].value) for s in log.samples}
    assert {r.sample_id: r.score.reward for r in report.results} == theirs == {"0": 1.0, "1": 1.0}
    assert report.limits == {}
    report = await run_here(
        from_inspect(task()), tmp_path, endpoint=counts_to_40, max_turns=16, experiment_name="cut"
    )
    assert report.limits == {"max_turns": 2}


async def test_what_a_task_asks_of_sampling_is_recorded_and_stop_sequences_are_cut(
    tmp_path: Path,
) -> None:
    asked = GenerateConfig(temperature=0.5, max_tokens=7, stop_seqs=[" And"])
    definition = from_inspect(task_of(config=asked, by=[match(location="end"), includes()]))
    (result, _) = (await run_here(definition, tmp_path, endpoint=says)).results
    assert result.trajectory.outcome["ignored_settings"] == {"max_tokens": 7, "temperature": 0.5}
    assert (result.score["match"], result.trajectory.answer[-1]) == (1.0, "B")


async def test_a_turn_never_comes_from_inspects_cache(tmp_path: Path) -> None:
    asked = []

    async def counting(messages: list[Message], **_: Any) -> str:
        asked.append(messages)
        return "ANSWER: A"

    for number in range(2):
        definition = from_inspect(task_of(generate(cache=True)))
        await run_here(definition, tmp_path / str(number), endpoint=counting)
    assert len(asked) == 4


async def test_no_answer_and_a_refusal_are_counted_and_several_values_are_metrics(
    tmp_path: Path,
) -> None:
    def by(state: TaskState) -> Score:
        return Score(value="N") if state.sample_id == 0 else Score.unscored(reason="refusal")

    parts = scoring(lambda state: Score(value={"right": True, "words": 3, "n/a": None}), "parts")
    both = from_inspect(task_of(by=[scoring(by), parts]), reward="parts.words")
    report = await run_here(both, tmp_path)
    for result in report.results:
        values = {metric.name: metric.value for metric in result.score.metrics}
        assert values == {
            "given": 0.0,
            "given.noanswer": 1.0,
            "parts.right": 1.0,
            "parts.words": 3.0,
            "parts.noanswer": 0.0,
        }
        assert result.score.reward == 3.0


RATED = [Score(value=rating) for rating in (1, 2, 3, 4, 5, 6, 5, 3, 2, 1)]
INVERTED = value_to_float(correct="I", incorrect="C")
LETTERED = [Score(value=letter) for letter in "CCIPCICCCC"]


@pytest.mark.parametrize(
    ("scores", "metrics", "expected", "settings"),
    [
        (RATED, [accuracy(to_float=lambda value: value / 10)], 0.32, {}),
        (RATED, [mean(to_float=lambda value: value == 5), bootstrap_stderr()], 0.2, {}),
        (RATED, [accuracy()], 3.2, {}),
        (RATED, [accuracy(to_float=value_to_float(correct=5, incorrect=1))], 2.2, {}),
        # Before a metric sees them, the mean over epochs has made numbers of letters.
        (LETTERED, [accuracy(to_float=INVERTED)], 0.75, {}),
        (LETTERED, [accuracy(to_float=INVERTED)], 0.25, {"epochs": Epochs(1, [])}),
        (
            [Score(value={"of": s.value, "n": 3}) for s in RATED],
            [{"o*": [mean(to_float=lambda value: value / 2)]}],
            1.6,
            {},
        ),
        (
            [Score(value={"of": s.value, "n": 3}) for s in RATED],
            [mean(to_float=lambda value: value["of"] * value["n"])],
            9.6,
            {},
        ),
    ],
)
async def test_a_mean_of_the_tasks_own_rule_is_the_one_that_inspect_reports(
    scores: list[Score],
    metrics: Any,
    expected: float,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    def task() -> Task:
        return Task(
            [InspectSample(id=i, input=f"{i}?", target="-") for i in range(len(scores))],
            solver=generate(),
            scorer=scoring(lambda state: scores[int(state.sample_id)]),
            metrics=metrics,
            **settings,
        )

    keyed = isinstance(metrics[0], dict)
    report = await run_here(from_inspect(task(), reward="given.of" if keyed else None), tmp_path)
    log = await run_theirs(task(), tmp_path)
    theirs = next(m for score in log.results.scores for m in score.metrics.values())
    assert report.summary["mean"] == pytest.approx(theirs.value) == pytest.approx(expected)
    assert not any(result.error for result in report.results)
    # What is stored is enough to score it again.
    again = score_outcome(report.results[0].trajectory, reward="given.of" if keyed else "given")
    assert {*map(str, again.metrics)} == {*map(str, report.results[0].score.metrics)}


@pytest.mark.parametrize(
    ("value", "rule", "problem"),
    [
        ("C", value_to_float(correct="yes!"), "the score is 'C', which value_to_float"),
        ("perhaps", value_to_float(correct="I"), "'perhaps', which is no number"),
        (3, lambda value: value["of"], "to_float of its metric failed for 3"),
        (3, lambda value: float("nan"), "to_float of its metric makes nan of 3"),
    ],
)
async def test_a_value_that_the_tasks_own_rule_cannot_read_is_an_error(
    value: Any, rule: Any, problem: str, tmp_path: Path
) -> None:
    by = scoring(lambda state: Score(value=value))
    task = task_of(by=by, metrics=[accuracy(rule)], epochs=Epochs(1, []))
    with pytest.raises(EvalFailed, match=re.escape(problem)):
        await run_here(from_inspect(task), tmp_path)


@metric(name="mean")
def own_mean() -> Any:
    return lambda scores: 7.0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"metrics": [accuracy(), mean(to_float=lambda value: 3.0)]}, "mean(to_float=<lambda>)"),
        ({"metrics": [accuracy(), stderr(cluster="topic")]}, "stderr(cluster=topic)"),
        ({"metrics": [own_mean()]}, "the metrics mean over all samples"),
        ({"epochs": Epochs(2, ["at_least_2"])}, "reduces its epochs by at_least"),
    ],
)
def test_what_is_not_reported_is_named_with_its_parameters(
    settings: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "heldout"):
        from_inspect(task_of(**settings))
    assert named in caplog.text


def test_a_fingerprint_changes_with_the_rule_of_a_metric() -> None:
    def of(divisor: int) -> Any:
        rule = accuracy(to_float=lambda value: value / divisor)
        return from_inspect(task_of(metrics=[rule])).environment_factory.identity()

    assert of(10) == of(10) != of(5)


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "inspect_evals/gsm9k"}, "has no task 'inspect_evals/gsm9k'"),
        ({"task": 3}, "takes a Task"),
        ({"task": task_of(), "n": 3}, "takes no n"),
        ({"task": task_of(by=model_graded_qa())}, "grades itself; name it: model_roles="),
        ({"task": Task(QUESTIONS)}, "has no scorer"),
        ({"task": task_of(), "reward": "match"}, "one of includes; got 'match'"),
        ({"task": task_of(sandbox="docker")}, "there is no docker that runs here"),
        ({"task": task_of(sandbox="local")}, "ask for it by name"),
        ({"task": task_of(cost_limit=1.0)}, "cost limit"),
        ({"task": "inspect_evals/agentic_misalignment", "shuffel": True}, "shuffel"),
    ],
)
def test_what_cannot_be_an_eval_is_refused_before_anything_runs(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInput, match=message):
        from_inspect(**arguments)


async def test_a_local_sandbox_runs_where_it_is_asked_for(tmp_path: Path) -> None:
    from inspect_ai.util import sandbox

    async def writes(state: TaskState, generate: Generate) -> None:
        await generate(state)
        await sandbox().write_file("answer", "ANSWER: A")
        state.output.completion = await sandbox().read_file("answer")

    definition = from_inspect(task_of(solving(writes), sandbox="docker"), sandbox="local")
    assert (await run_here(definition, tmp_path)).summary["mean"] == 1.0


# --- Beside other things ------------------------------------------------------------------------


async def test_an_item_that_takes_too_long_ends_with_its_solver(tmp_path: Path) -> None:
    ended = []

    async def sleeps(state: TaskState, generate: Generate) -> None:
        await generate(state)
        try:
            await asyncio.sleep(3600 if state.sample_id == 0 else 0)
        finally:
            ended.append(state.sample_id)

    report = await run_here(from_inspect(task_of(solving(sleeps))), tmp_path, timeout=2.0)
    assert [str(result.error)[:7] for result in report.results] == ["timeout", "None"]
    assert sorted(ended) == [0, 1]


def said_of(report: EvalReport) -> list[Any]:
    """What a run says of each item, without times."""
    assert report.errors == []
    return [
        (r.sample_id, [m.text for m in r.trajectory.messages], r.trajectory.outcome, r.score)
        for r in report.results
    ]


@pytest.mark.parametrize("where", ["one event loop", "two threads"])
async def test_two_tasks_at_once_give_what_each_gives_alone(where: str, tmp_path: Path) -> None:
    def size(state: TaskState) -> Score:
        return Score(value=len(state.output.completion))

    def make(number: int) -> Task:
        """Equal ids and questions, and another solver and scorer."""
        rows = [InspectSample(id=i, input=f"{i}?", target="ANSWER: A") for i in range(12)]
        how = [system_message(f"Task {number}."), use_tools(add()), generate()]
        by = includes() if number else scoring(size, "size")
        return Task(rows, solver=how, scorer=by)

    def run(number: int, folder: str) -> Any:
        return run_here(from_inspect(make(number)), tmp_path / folder / str(number))

    alone = [said_of(await run(number, "alone")) for number in range(2)]
    reports: dict[int, EvalReport] = {}

    async def beside(number: int) -> None:
        if where == "one event loop":
            reports[number] = await run(number, "beside")
        else:
            in_thread = partial(asyncio.run, run(number, "beside"))
            reports[number] = await anyio.to_thread.run_sync(in_thread)

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(beside, number)
    assert [said_of(reports[number]) for number in range(2)] == alone
    assert alone[0] != alone[1]


async def test_the_time_behind_another_eval_is_not_an_items_own(tmp_path: Path) -> None:
    async def slow(state: TaskState, generate: Generate) -> None:
        await generate(state)
        await asyncio.sleep(3.0)

    runs = [
        run_here(from_inspect(task_of(solving(slow))), tmp_path / str(n), timeout=5.0)
        for n in range(2)
    ]
    reports = await asyncio.gather(*runs)
    assert [report.errors for report in reports] == [[], []]


async def test_a_run_leaves_random_numbers_and_logging_as_they_were(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = random.getstate(), np.random.get_state()[1].tolist(), root.level, [*root.handlers]
    await run_here(from_inspect(gives(Score(value="C"))), tmp_path)
    after = random.getstate(), np.random.get_state()[1].tolist(), root.level, [*root.handlers]
    assert before == after


def test_training_with_an_inspect_task_held_out_ends_in_the_same_weights(tmp_path: Path) -> None:
    import torch

    from heldout.testing.neutral import assert_neutral
    from heldout.training import PeriodicEval, live_model
    from tests.tiny_model import tiny_model

    rows = [InspectSample(input=f"w{i} w{i + 1}", target=f"w{i}") for i in range(5)]
    held_out = from_inspect(Task(rows, scorer=scoring(lambda state: Score(value=state.epoch))))
    curves = []

    def train(evaluating: bool) -> Any:
        torch.manual_seed(3)
        random.seed(3)
        model, tokenizer = tiny_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        curve = PeriodicEval(
            held_out,
            live_model(tokenizer, held_out, max_new=4, rows=2),
            every_steps=2,
            label="held_out",
            run_dir=tmp_path / str(len(curves)),
            at_start=True,
        )
        curves.append(curve)
        losses = []
        for step in range(5):
            if step > 0:
                ids = torch.randint(8, 40, (4, 8)) + random.randrange(8)
                loss = model(input_ids=ids, labels=ids).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append({"loss": loss.item()})
            if evaluating:
                curve.maybe_run(step, model)
        return model, losses

    assert_neutral(train)
    points = [point for curve in curves for point in curve.history]
    assert [(point.step, point.n, point.skipped) for point in points] == [
        *((step, 5, None) for step in (0, 2, 4))
    ]


def test_training_rollouts_of_an_inspect_task_have_tokens_and_rewards() -> None:
    from heldout.rollouts.generating import rollout_batch
    from tests.toy import engine, parse, plain, render

    definition = from_inspect(Task([InspectSample(input="1?", target="1")] * 2, scorer=includes()))
    for said, reward in (("1", 1.0), ("2", 0.0)):
        rollouts = rollout_batch(
            definition,
            None,
            render,
            engine(lambda *_, said=said: said),
            3,
            30,
            decode=plain,
            parse=parse,
        )
        assert [(rollout.error, rollout.reward) for rollout in rollouts] == [(None, reward)] * 2


def test_an_inspect_task_is_evaluated_in_the_background(tmp_path: Path) -> None:
    from heldout.training import AsyncEvalDispatcher, PeriodicEval, live_model
    from tests.tiny_model import tiny_model

    model, tokenizer = tiny_model()
    rows = [InspectSample(input=f"w{i} w{i + 1}", target=f"w{i}") for i in range(5)]
    held_out = from_inspect(Task(rows, scorer=includes()))
    builder = live_model(tokenizer, held_out, max_new=4, rows=2)
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        curve = PeriodicEval(held_out, builder, every_steps=1, run_dir=tmp_path)
        for step in (1, 2):
            curve.maybe_run(step, model)
        dispatcher.drain()
    assert [(point.step, point.skipped) for point in curve.history] == [(1, None), (2, None)]


def test_a_fingerprint_changes_with_the_code_and_not_with_the_object() -> None:
    def of(how: Any, **settings: Any) -> Any:
        return from_inspect(task_of(how, **settings)).environment_factory.identity()

    one = of([use_tools(add()), generate()])
    assert one == of([use_tools(add()), generate()])
    others = [of(generate()), of(solving(raises)), of(solving(times_out)), of(None, time_limit=9)]
    assert len({str(each) for each in [one, *others]}) == 5


WITHOUT_DATA = (
    *("agent_threat_bench", "agentic_misalignment", "make_me_pay", "persistbench", "tau2"),
    "writingbench",
)
"""Evals of inspect_evals whose description names no data from elsewhere."""


def test_tasks_are_listed_with_what_they_need_and_run_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    listed = {task.name.partition("/")[2]: task for task in list_tasks("inspect")}
    tasks = {name: task.refused for name, task in listed.items()}
    assert tasks["tau2_airline"] is None
    assert "no docker" in str(tasks["swe_bench"])
    assert "openai/gsm8k from the hub" in str(tasks["gsm8k"])
    (address,) = listed["cybermetric_80"].downloads
    assert address.startswith("https://raw.githubusercontent.com/cybermetric/CyberMetric/")
    # Whatever can run here has told where its data come from, or comes without any.
    can_run = [name for name, t in listed.items() if t.refused is None and not t.downloads]
    assert [name for name in can_run if not name.startswith(WITHOUT_DATA)] == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    (gsm8k,) = (task for task in list_tasks("inspect") if task.name.endswith("/gsm8k"))
    assert (gsm8k.refused, gsm8k.downloads) == (
        None,
        ("https://huggingface.co/datasets/openai/gsm8k",),
    )
    (tmp_path / "hub" / "datasets--openai--gsm8k").mkdir(parents=True)
    (gsm8k,) = (task for task in list_tasks("inspect") if task.name.endswith("/gsm8k"))
    assert gsm8k.downloads == ()
    assert run_cli(["tasks", "inspect", "--json"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    (line,) = (line for line in lines if line["name"].endswith("/cybermetric_80"))
    assert (line["decision"], line["refused"]) == ("may_download", None)
    assert "may download https://raw.githubusercontent.com/" in line["sentence"]
    file = tmp_path / "mine.py"
    file.write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import json_dataset\n"
        "from inspect_ai.scorer import match\n"
        "@task\n"
        "def mine(rows='rows.jsonl'): return Task(json_dataset(rows), scorer=match())\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"input": "1 + 1?", "target": "2"}\n')
    (sample,) = load_task(f"inspect:{file}@mine", rows="rows.jsonl").samples
    assert (sample.id, sample.input, sample.ground_truth) == ("1", {"question": "1 + 1?"}, "2")
    with pytest.raises(InvalidInput, match=r"it has mine.py@mine"):
        load_task(f"inspect:{file}@yours")
    with pytest.raises(InvalidInput, match="its parameters are rows"):
        load_task(f"inspect:{file}", row=1)


def test_the_code_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    kinds = []
    for kind, code in blocks("docs/inspect.md"):
        kinds.append(kind)
        if kind == "python":
            exec(compile(code, "docs/inspect.md", "exec"), namespace)
    assert kinds == ["sh", "python"]


class StopsAfterOne:
    """Has Inspect run one sample, and no more."""

    def __init__(self) -> None:
        self.asked = 0

    async def start_task(self, task: Any, samples: Any, epochs: int) -> str:
        return "one is enough"

    async def schedule_sample(self, id: Any, epoch: int) -> Any:
        self.asked += 1
        return EarlyStop(id=id, epoch=epoch, reason="enough") if self.asked > 1 else None

    async def complete_sample(self, id: Any, epoch: int, scores: Any) -> None:
        pass

    async def complete_task(self) -> dict[str, Any]:
        return {}


def test_a_task_that_stops_early_runs_whole_and_its_log_says_what_was_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [InspectSample(id=i, input=f"Say {i}", target=str(i)) for i in range(1, 4)]
    stopping = StopsAfterOne()
    made = Task(
        name="early",
        dataset=MemoryDataset(rows),
        scorer=match(),
        early_stopping=stopping,
        checkpoint=True,  # snapshots for Inspect's own retries, which an eval here has none of
    )
    report = heldout.run(
        from_inspect(made), endpoint=lambda _: "1", output_dir=str(tmp_path), experiment_name="own"
    )
    assert (report.summary["n"], report.summary["n_errors"], stopping.asked) == (3, 0, 0)
    assert "early stops early in Inspect" in caplog.text
    (log,) = inspect_ai.eval(
        made,
        model=get_model("mockllm/model", custom_outputs=mock_answer, memoize=False),
        log_dir=str(tmp_path / "logs"),
        display="none",
        ctl_server=False,
    )
    imported = import_log(log.location, output_dir=tmp_path)
    assert (imported.status, imported.summary["n"], imported.summary["n_asked"]) == (
        *("interrupted", 1),
        3,
    )
    assert imported.info is not None
    assert imported.info.reason == (
        "Inspect stopped early ('one is enough'): 2 attempts were not made"
    )


def mock_answer(messages: Any, tools: Any, choice: Any, config: Any) -> ModelOutput:
    output = ModelOutput.from_content("mockllm/model", "1")
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


PUBLISHED = "inspect_evals/agent_threat_bench_memory_poison"


async def test_a_log_of_a_published_task_is_compared_with_a_run_of_it_here(tmp_path: Path) -> None:
    log = await run_theirs(PUBLISHED, tmp_path, 3)
    imported = import_log(log.location, output_dir=tmp_path)
    own = await run_here(from_inspect(PUBLISHED), tmp_path, max_samples=3)
    comparison = compare(imported, own)
    assert (comparison.paired, comparison.mismatches) == (True, ())
    assert comparison.overall.difference == 0
    assert compare(own, imported).mismatches == ()


@pytest.mark.parametrize(
    "unlike", ["arguments", "limits", "solver", "reward", "a changed task", "another version"]
)
async def test_a_log_of_what_is_not_quite_the_task_is_refused(unlike: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"task": PUBLISHED}
    settings: dict[str, Any] = {}
    reward = None
    if unlike == "arguments":
        given["difficulty"] = "hard"
    elif unlike == "limits":
        settings["message_limit"] = 7
    elif unlike == "solver":
        settings["solver"] = generate()
    elif unlike == "reward":
        reward = "agent_threat_bench_scorer.security"
    elif unlike == "a changed task":
        given["task"] = task_with(of_inspect_evals(PUBLISHED.partition("/")[2])(), name="mine")
    log = await run_theirs(PUBLISHED, tmp_path, 3, **settings)
    imported = import_log(log.location, output_dir=tmp_path)
    if unlike == "another version":
        assert imported.info is not None
        imported.config["imported"]["published"]["packages"]["inspect_evals"] = "0.25.0"
    definition = from_inspect(given.pop("task"), reward=reward, **given)
    own = await run_here(definition, tmp_path, max_samples=3)
    allow = ["samples"] if unlike == "arguments" else []
    with pytest.raises(NotComparable) as refused:
        compare(imported, own, allow=allow)
    assert {*refused.value.kinds} == {"scorer", "environment"}
