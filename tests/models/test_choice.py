"""Which model is asked: the one that was named, or the resumed run's, and never another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import EvalConfig, Sample, Sampling, base_config
from heldout.errors import InvalidInput
from heldout.models import demo
from heldout.store.report import EvalReport
from heldout.training.checkpoints import follow_checkpoints
from tests.faulty_server import FaultyServer, answer, status
from tests.models.asking import right

SAMPLES = [Sample(name, {"question": name}, "ok") for name in ("a", "b")]
REFUSED = (
    "the eval has no model. Name one: `endpoint='smollm2'` asks a small model on this machine "
    "(93 MB to download, 0.5 GB on disk); `endpoint='openai:gpt-4o-mini'` asks a server (with its "
    "key in OPENAI_API_KEY)"
)


@pytest.mark.parametrize(
    "call",
    [
        lambda: heldout.run(SAMPLES, right),
        lambda: heldout.run(SAMPLES, right, resume=True),
        lambda: heldout.run(SAMPLES, right, endpoint=None, config=EvalConfig(max_samples=1)),
        lambda: anyio.run(heldout.evaluate, SAMPLES, base_config, right),
        lambda: anyio.run(
            heldout.evaluate, SAMPLES, EvalConfig(experiment_name="x", resume=True), right
        ),
    ],
)
def test_an_eval_without_a_model_is_refused_before_anything_is_made(
    call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as refused:
        call()
    assert str(refused.value) == REFUSED
    assert not [*tmp_path.iterdir()]


def test_the_refusal_says_what_to_install_first_where_the_small_model_lacks_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "PACKAGES", ("torch", "a_package_that_is_not_there"))
    with pytest.raises(InvalidInput, match="on disk; first `pip install 'accelerate>=.*torch>="):
        heldout.run(SAMPLES, right)


def test_a_run_is_resumed_on_the_model_that_its_directory_names(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server.script(answer("ok"), status(400), then=answer("ok"))
    model = f"openai:m@{server.url}"
    settings: dict[str, Any] = {"experiment_name": "x", "max_concurrent": 1, "max_error_rate": 1}
    begun = heldout.run(SAMPLES, right, endpoint=model, **settings)
    assert begun.summary["n_errors"] == 1
    resumed = heldout.run(SAMPLES, right, resume=True, **settings)
    assert (resumed.path, resumed.summary["n_errors"]) == (begun.path, 0)
    assert resumed.config["endpoint"] == begun.config["endpoint"]
    asked = len(server.requests)
    again = EvalConfig(
        experiment_name=str(Path(str(begun.path)).relative_to("outputs/evals")), resume=True
    )
    report = anyio.run(heldout.evaluate, SAMPLES, again, right)
    assert (report.path, len(server.requests)) == (begun.path, asked)


def test_a_run_of_a_function_cannot_be_resumed_without_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heldout.run(SAMPLES, right, endpoint=lambda messages: "ok", experiment_name="x")
    with pytest.raises(InvalidInput) as refused:
        heldout.run(SAMPLES, right, experiment_name="x", resume=True)
    assert str(refused.value) == REFUSED
    assert EvalReport.load("x").summary["mean"] == 1


def test_settings_for_servers_wait_for_the_model_and_are_refused_by_one_in_process() -> None:
    config = EvalConfig(sampling=Sampling(extra_body={"top_k": 3}))
    assert replace(config, endpoint="openai:m").sampling.extra_body == {"top_k": 3}
    with pytest.raises(InvalidInput, match="for servers; 'smollm2' is none"):
        replace(config, endpoint="smollm2")
    with pytest.raises(InvalidInput, match=r"for servers; 'hf:.*' is none"):
        follow_checkpoints("x", SAMPLES, right, config=config)
