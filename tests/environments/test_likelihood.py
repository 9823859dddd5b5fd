"""Evals by likelihood: multiple choice, on each kind of endpoint, saved, and in training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import EvalReport, Message, Sample
from heldout.environments import likelihood_choices
from heldout.environments.likelihood import ChoiceScore
from heldout.errors import FatalEndpointError, InvalidInput, SystemicFailure
from heldout.models.http import HTTPEndpoint
from heldout.models.local import LocalEndpoint
from tests.faulty_server import FaultyServer, Request, nothing_from_outside, status
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

CHOICES = ["w5 w6 w7", "w8", "w9 w10"]


def make_samples(n: int = 6) -> list[Sample]:
    return [
        Sample(f"s{i}", {"question": f"w{i} w3"}, "ABC"[i % 3], {"choices": CHOICES})
        for i in range(n)
    ]


@pytest.fixture
def local() -> Iterator[LocalEndpoint]:
    endpoint = LocalEndpoint(*tiny_model())
    yield endpoint
    anyio.run(endpoint.close)


def test_the_most_likely_choice_is_the_answer_by_each_way_to_compare(
    local: LocalEndpoint, tmp_path: Path
) -> None:
    definition = likelihood_choices(make_samples())
    settings: dict[str, Any] = {"endpoint": local, "output_dir": str(tmp_path), "progress": False}
    report = heldout.run(definition, experiment_name="mc", **settings)
    for i, result in enumerate(report.results):
        assert result.error is None
        assert result.trajectory.last_turn is None
        assert result.question == f"w{i} w3"
        assert result.sample.ground_truth == CHOICES[i % 3]

        async def ask(i: int = i) -> Any:
            return await local.loglikelihood(f"w{i} w3", [f" {text}" for text in CHOICES])

        rated = anyio.run(ask)
        assert result.trajectory.outcome is not None
        stored = result.trajectory.outcome["likelihoods"]
        assert [part["logprob"] for part in stored] == [part.logprob for part in rated]
        sums = [part.logprob for part in rated]
        per_character = [part.logprob / (part.characters - 1) for part in rated]  # but the space
        per_byte = [part.logprob / (part.bytes - 1) for part in rated]
        for metric, by in [("acc", sums), ("acc_norm", per_character), ("acc_bytes", per_byte)]:
            assert result.score[metric] == (by.index(max(by)) == i % 3)
        assert result.score.reward == result.score["acc"]
    assert len({result.score["acc"] for result in report.results}) == 2
    # Another way to compare does not need the model.
    rescored = anyio.run(heldout.rescore, report, ChoiceScore("acc_norm"))
    assert rescored.summary["mean"] == report.summary["metric_acc_norm"]
    # Stopped after a few items and resumed, it is the same report.
    half = heldout.run(definition, experiment_name="half", max_samples=2, **settings)
    assert half.path is not None
    journal = (half.path / "results.jsonl").read_bytes()
    assert [r.trajectory.outcome for r in report.results[:2]] == [
        r.trajectory.outcome for r in EvalReport.load(half.path).results
    ]
    assert b'"likelihoods"' in journal


def test_numbers_do_not_depend_on_how_many_are_in_flight(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    outcomes = []
    for rows in (1, 16):
        report = heldout.run(
            likelihood_choices(make_samples()),
            endpoint=LocalEndpoint(model, tokenizer, max_batch=rows),
            max_concurrent=rows,
            output_dir=str(tmp_path / str(rows)),
        )
        outcomes.append([result.trajectory.outcome for result in report.results])
    assert outcomes[0] == outcomes[1]


def test_a_question_can_be_a_conversation(local: LocalEndpoint, tmp_path: Path) -> None:
    definition = likelihood_choices(make_samples(2), chat=True, delimiter=" ")
    report = heldout.run(definition, endpoint=local, output_dir=str(tmp_path))

    async def ask() -> Any:
        return await local.loglikelihood([Message("user", "w0 w3")], [" " + c for c in CHOICES])

    outcome = report.results[0].trajectory.outcome
    assert outcome is not None
    assert [p["logprob"] for p in outcome["likelihoods"]] == [p.logprob for p in anyio.run(ask)]


@pytest.mark.parametrize(
    ("truth", "metadata", "choices", "message"),
    [
        ("D", {"choices": CHOICES}, "choices", "is 'D', which is not the text, the letter or the"),
        (3, {"choices": CHOICES}, "choices", "is 3, which"),
        ("A", {}, "choices", "no list of two or more choices in metadata['choices'], got None"),
        ("A", {}, ["yes"], "choices must be two or more texts"),
        ("A", {"choices": ["w1", ""]}, "choices", "no list of two or more choices"),
    ],
)
def test_a_sample_that_cannot_be_right_is_refused_when_the_eval_is_made(
    truth: Any, metadata: dict[str, Any], choices: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message.replace("[", r"\[")):
        likelihood_choices([Sample("s", {"question": "w1"}, truth, metadata)], choices)


def test_endpoints_that_cannot_rate_are_refused_before_anything_runs(tmp_path: Path) -> None:
    from heldout.training import from_functions

    definition = likelihood_choices(make_samples())
    for endpoint, settings in [
        (lambda messages: "A", {}),
        ("anthropic:m", {}),
        ("openai:m@http://127.0.0.1:9/v1", {"cache": str(tmp_path / "cache.db")}),
    ]:
        with pytest.raises(InvalidInput, match="compares the likelihoods of given texts"):
            heldout.run(definition, endpoint=endpoint, output_dir=str(tmp_path / "out"), **settings)
    assert not [*tmp_path.rglob("results.jsonl")]
    with pytest.raises(InvalidInput, match="this runner writes turns only; live_model"):
        from_functions(str, lambda *_: [], definition)
    question = {"messages": [{"role": "user", "content": "a"}] * 2}
    with pytest.raises(InvalidInput, match="one text, which the choices continue"):
        likelihood_choices([Sample("s", question, 0)], ["a", "b"])


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_from_outside(monkeypatch)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none-0123456789abcdef")


# --- Servers ------------------------------------------------------------------------------------


def echo_like_vllm(request: Request) -> dict[str, Any]:
    """The reply of vLLM's completions to echo with logprobs: a first special token, one new one."""
    tokens = ["<s>", *request.body["prompt"].replace(" ", "| ").split("|"), " new"]
    logprobs = [None, *(-0.5 * len(token) for token in tokens[1:])]
    top = [None, *({"other": -1.0, t: p} for t, p in zip(tokens, logprobs, strict=True) if p)]
    return {
        "choices": [
            {"logprobs": {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top}}
        ],
        "usage": {"prompt_tokens": len(tokens) - 1},
    }


def test_a_server_that_echoes_the_prompt_with_logprobs_rates_texts(tmp_path: Path) -> None:
    with FaultyServer() as server:
        server.behave = lambda request: status(200, echo_like_vllm)
        endpoint = HTTPEndpoint("m", server.url)

        async def ask() -> Any:
            try:
                return await endpoint.loglikelihood("two and ", ["two is four", "a"])
            finally:
                await endpoint.close()

        long, short = anyio.run(ask)
        assert (long.logprob, long.greedy, long.tokens) == (-0.5 * 12, False, 3)
        assert (short.logprob, short.greedy, short.tokens) == (-1.0, True, 1)
        assert {r.target for r in server.requests} == {"/v1/completions"}
        assert server.requests[0].body["prompt"] == "two and two is four"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (status(404, "no such path"), r"does not give the log-probabilities of a prompt .*404"),
        (status(400, {"error": "echo is not supported"}), "echo is not supported"),
        (status(200, {"choices": [{"text": "hi"}]}), "does not give the log-probabilities"),
    ],
)
def test_a_server_that_does_not_stops_the_eval_at_once(
    action: Any, message: str, tmp_path: Path
) -> None:
    definition = likelihood_choices(make_samples(40))
    with FaultyServer() as server:
        server.behave = lambda request: action
        with pytest.raises(SystemicFailure, match=message):
            heldout.run(
                definition,
                endpoint=f"openai:m@{server.url}",
                max_concurrent=1,
                output_dir=str(tmp_path),
            )
        assert len(server.requests) == 1


def test_what_a_server_cannot_tell_apart_is_the_items_error(tmp_path: Path) -> None:
    with FaultyServer() as server:
        server.behave = lambda request: status(200, echo_like_vllm)

        async def ask(prompt: Any, text: str) -> Any:
            endpoint = HTTPEndpoint("m", server.url)
            try:
                await endpoint.loglikelihood(prompt, [text])
            finally:
                await endpoint.close()

        with pytest.raises(heldout.errors.EndpointError, match="no token begins where 'r five'"):
            anyio.run(ask, "fou", "r five")
        with pytest.raises(FatalEndpointError, match="need the model's chat template"):
            anyio.run(ask, [Message("user", "two")], "four")


# --- While a model trains -------------------------------------------------------------------------


def test_a_curve_of_likelihoods_does_not_change_training(tmp_path: Path) -> None:
    import torch

    from heldout.testing import assert_neutral
    from heldout.training import PeriodicEval, live_model, read_points

    start, tokenizer = tiny_model()
    definition = likelihood_choices(make_samples())
    runs = iter(range(9))

    def train(evaluating: bool) -> Any:
        model = copy.deepcopy(start).train()
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        evals = None
        if evaluating:
            folder = tmp_path / f"run{next(runs)}"
            builder = live_model(tokenizer, definition, rows=4)
            evals = PeriodicEval(definition, builder, run_dir=folder, every_steps=2)
        for step in range(1, 5):
            ids = torch.randint(8, 60, (2, 9))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if evals is not None:
                evals.maybe_run(step, model)
        return model

    assert_neutral(train, repeats=2)
    first, second = (read_points(tmp_path / f"run{n}" / "curve.jsonl") for n in range(2))
    assert [point.step for point in first] == [2, 4]
    assert [point.summary for point in first] == [point.summary for point in second]
    report = EvalReport.load(tmp_path / "run0" / first[-1].run)
    assert all(result.trajectory.outcome for result in report.results)
    assert first[-1].decoding["way"] == "likelihood"
