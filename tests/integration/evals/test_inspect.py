"""Against the real Inspect: its results where it reports right, errors where it would not."""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspect_ai import Task, task
from inspect_ai.dataset import Sample as InspectSample
from inspect_ai.dataset import FieldSpec, example_dataset
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import (
    Score,
    accuracy,
    bootstrap_stderr,
    choice,
    includes,
    match,
    model_graded_fact,
    model_graded_qa,
    scorer,
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
from inspect_ai.util import registry_create

from heldout import Completion, Message
from heldout.errors import EvalFailed, InvalidInput
from heldout.integrations.inspect import from_inspect, session
from heldout.store.report import EvalReport
from tests.integration.evals.inspect_peer import (
    as_grader,
    as_inspect_model,
    endpoint,
    run_here,
    run_theirs,
)

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
        "ignore:Exception ignored in. <function MemoryObject:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
        return registry_create("task", f"inspect_evals/{name}", **given)

    return make


JUDGE = {
    "grader": tuple(f'{{"reasoning": "r", "score": {n}, "rating": {n}}}' for n in (1, 2, 3))
}
CUSTOMER = {"user": ("My id is user_1.", "###STOP###")}
TASKS = {
    "theory_of_mind": (example("theory_of_mind", [system_message("Hm."), generate()]), GRADES),
    "popularity": (example("popularity", by=match(location="any")), None),
    "security_guide": (example("security_guide", by=[includes(), model_graded_qa()]), GRADES),
    "bias_detection": (example("bias_detection", by=includes()), None),
    "biology_qa": (example("biology_qa", by=model_graded_qa(partial_credit=True)), (*GRADES, "GRADE: P")),
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
    "agent_threat_bench_memory_poison": (of_inspect_evals("agent_threat_bench_memory_poison"), None),
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
    "persistbench_cross_domain": (of_inspect_evals("persistbench_cross_domain"), JUDGE),
    "persistbench_sycophancy": (of_inspect_evals("persistbench_sycophancy"), JUDGE),
    "persistbench_beneficial_memory": (of_inspect_evals("persistbench_beneficial_memory"), JUDGE),
    "tau2_airline": (of_inspect_evals("tau2_airline"), CUSTOMER),
    "tau2_retail": (of_inspect_evals("tau2_retail"), CUSTOMER),
}


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
        if "ended without asking" in str(result.error):
            assert name.startswith("tau2")  # the customer left before a word was said
            continue
        assert (result.error, sample.error) == (None, None)
        given = result.trajectory.outcome["scores"]
        assert {key: score["value"] for key, score in given.items()} == {
            key: score.value for key, score in sample.scores.items()
        }
        assert [m.text for m in result.trajectory.messages if m.role != "assistant"] == [
            m.text for m in sample.messages if m.role != "assistant"
        ] or name in ("choices",)
        for key, score in sample.scores.items():
            if not isinstance(score.value, dict):
                assert result.score[key] == value_to_float()(score.value)
