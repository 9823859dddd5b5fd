"""HeldoutCallback in the real Trainer, on a model of two weights and evals of known results."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback

from heldout import Score
from heldout._live.weights import explain_sharding
from heldout.errors import InvalidInput
from heldout.integrations import transformers as ours
from heldout.integrations.transformers import HeldoutCallback
from heldout.training import (
    AsyncEvalDispatcher,
    PeriodicEval,
    SnapshotPool,
    current_points,
    from_functions,
    live_model,
    read_points,
)
from heldout.training.background.dispatcher import pending_evals
from heldout.training.curve.points import request_stop
from heldout.training.loggers import CallableLogger
from tests.integration.line_trainer import (
    DATA,
    Heard,
    Known,
    Line,
    make_evals,
    make_trainer,
    samples,
)
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.integration


def trained(
    folder: Path, evals: PeriodicEval | list[PeriodicEval], *callbacks: Any, **settings: Any
) -> Any:
    """A trainer that has trained, with an attached callback."""
    trainer = make_trainer(folder, *callbacks, **settings)
    HeldoutCallback(*(evals if isinstance(evals, list) else [evals])).attach(trainer)
    trainer.train()
    return trainer


def steps_of(evals: PeriodicEval) -> list[int]:
    return [point.step for point in read_points(evals.run_dir / "curve.jsonl")]


def eval_rows(history: list[dict[str, Any]], name: str = "heldout") -> list[dict[str, Any]]:
    return [row for row in history if f"eval_{name}_step" in row]


# --- Cadence and the log ------------------------------------------------------------------------


def test_evals_run_on_their_cadence_in_optimizer_steps_and_reach_the_reporters(
    tmp_path: Path,
) -> None:
    heard, evals = Heard(), make_evals(tmp_path, at_start=True)
    settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 1}
    trainer = make_trainer(tmp_path, heard, steps=5, **settings)
    callback = HeldoutCallback(evals)
    assert callback.attach(trainer) is callback
    assert callback.attach(trainer) is callback
    trainer.train()
    assert steps_of(evals) == [0, 2, 4, 5]
    assert [p.final for p in evals.history] == [False, False, False, True]
    assert [row["step"] for row in eval_rows(heard.rows)] == [0, 2, 4, 5]
    assert [row["step"] for row in heard.rows if "loss" in row] == [1, 2, 3, 4, 5]
    assert sum(each is callback for each in trainer.callback_handler.callbacks) == 1


def test_a_result_is_a_row_of_the_log_with_its_step(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, lambda eval, sample: float(sample < 3))
    trainer = trained(tmp_path, evals, steps=2)
    (row,) = eval_rows(trainer.state.log_history)
    assert row.pop("eval_heldout_seconds") >= 0
    for mean in ("reward", "pass_rate", "metric_reward"):
        low, high = (row.pop(f"eval_heldout_{mean}_ci_{end}") for end in ("low", "high"))
        assert low < 0.75 < high
    assert row.pop("eval_heldout_metric_twice_ci_low") < 1.5
    assert row.pop("eval_heldout_metric_twice_ci_high") > 1.5
    stderrs = ("reward_stderr", "metric_reward_stderr", "metric_twice_stderr")
    assert all(row.pop(f"eval_heldout_{stderr}") > 0 for stderr in stderrs)
    best = [row.pop(f"eval_heldout_best_{end}") for end in ("ci_low", "estimate", "ci_high")]
    assert best == sorted(best)
    assert row == {
        "eval_heldout_reward": 0.75,
        "eval_heldout_reward_scored": 0.75,
        "eval_heldout_reward_min": 0.0,
        "eval_heldout_reward_max": 1.0,
        "eval_heldout_pass_rate": 0.75,
        "eval_heldout_metric_reward": 0.75,
        "eval_heldout_metric_reward_n": 4,
        "eval_heldout_metric_twice": 1.5,
        "eval_heldout_metric_twice_n": 4,
        "eval_heldout_n": 4,
        "eval_heldout_n_scored": 4,
        "eval_heldout_n_errors": 0,
        "eval_heldout_n_truncated": 0,
        "eval_heldout_final": 1,
        "eval_heldout_effect": 0.05,
        "eval_heldout_best_step": 2,
        "eval_heldout_step": 2,
        "epoch": 0.5,
        "step": 2,
    }


def test_two_callbacks_that_would_log_under_one_name_are_refused(tmp_path: Path) -> None:
    first, second = (make_evals(tmp_path, run_dir=tmp_path / name) for name in "ab")
    trainer = make_trainer(tmp_path, HeldoutCallback(first), HeldoutCallback(second))
    with pytest.raises(InvalidInput, match="two HeldoutCallbacks would log as eval_heldout_"):
        trainer.train()


def test_a_callback_of_the_users_can_copy_the_state(tmp_path: Path) -> None:
    class Copies(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            copy.deepcopy(state)

    trained(tmp_path, make_evals(tmp_path), Copies(), steps=2)


def test_a_turn_is_as_long_as_a_completion_of_trl(tmp_path: Path) -> None:
    limits: list[int] = []

    def answers(model: Any, prompts: list[str], max_new: int) -> list[str]:
        limits.append(max_new)
        return ["?"] * len(prompts)

    runner = from_functions(lambda messages: messages[-1].text, answers, lambda t, s: 1.0)
    evals = make_evals(tmp_path, builder=runner)
    trainer = make_trainer(tmp_path, HeldoutCallback(evals), steps=2)
    trainer.args.max_completion_length = 40  # as GRPOConfig has it
    trainer.train()
    assert limits == [40]


def test_the_trainings_own_rows_are_all_there_and_as_they_were(tmp_path: Path) -> None:
    def rows(*evals: PeriodicEval) -> list[dict[str, Any]]:
        trainer = make_trainer(tmp_path / str(len(evals)), logging_steps=3, steps=6)
        HeldoutCallback(*evals).attach(trainer)
        trainer.train()
        return [
            {key: row[key] for key in ("loss", "grad_norm", "learning_rate", "step")}
            for row in trainer.state.log_history
            if "loss" in row
        ]

    with_evals = rows(make_evals(tmp_path, every_steps=1))
    assert [row["step"] for row in with_evals] == [3, 6]
    assert with_evals == rows()


def test_one_that_is_not_attached_writes_to_the_log_alone_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    callback = HeldoutCallback(make_evals(tmp_path))
    trainer = make_trainer(tmp_path, heard, callback, steps=4)
    trainer.args.report_to = ["somewhere"]
    trainer.train()
    assert [row["step"] for row in eval_rows(trainer.state.log_history)] == [2, 4]
    assert [row["epoch"] for row in eval_rows(trainer.state.log_history)] == [0.5, 1.0]
    assert eval_rows(heard.rows) == []
    assert caplog.text.count("not to somewhere; callback.attach(trainer)") == 1


def test_a_reporter_that_fails_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Down(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
            if "eval_heldout_step" in logs:
                raise ConnectionError("the tracker is down")

    trainer = trained(tmp_path, make_evals(tmp_path), Down(), steps=2)
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [1, 2]
    assert "the tracker is down" in caplog.text


def test_evals_do_not_overwrite_each_other(tmp_path: Path) -> None:
    one = make_evals(tmp_path, lambda eval, sample: 0.25)
    other = make_evals(tmp_path, lambda eval, sample: 0.75, label="hard", every_steps=3)
    trainer = trained(tmp_path, [one, other], steps=6)
    history = trainer.state.log_history
    found = {
        name: [(row["step"], row[f"eval_{name}_reward"]) for row in eval_rows(history, name)]
        for name in ("heldout", "hard")
    }
    assert found == {
        "heldout": [(2, 0.25), (4, 0.25), (6, 0.25)],
        "hard": [(3, 0.75), (6, 0.75)],
    }


# --- Skips --------------------------------------------------------------------------------------


def broken(model: Any) -> Any:
    raise RuntimeError("no tokenizer")


def test_a_skip_is_visible_and_never_looks_like_a_score(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, builder=broken)
    trainer = trained(tmp_path, evals, steps=2)
    (row,) = eval_rows(trainer.state.log_history)
    assert row.pop("eval_heldout_seconds") >= 0
    assert row == {
        "eval_heldout_skipped": 1.0,
        "eval_heldout_step": 2,
        "epoch": 0.5,
        "step": 2,
    }
    assert trainer.state.global_step == 2
    assert "no tokenizer" in (evals.history[0].skipped or "")


def test_weights_that_cannot_be_gathered_are_a_skip(tmp_path: Path) -> None:
    """ZeRO-3 leaves parameters without content between steps, and here without their shape."""

    evals = make_evals(tmp_path, builder=live_model(tiny_model()[1], lambda t, s: Score()))
    callback = HeldoutCallback(evals)
    model = Line()
    model.layer.bias = nn.Parameter(torch.zeros(0))
    model.layer.bias.ds_id = 1  # type: ignore[attr-defined]
    callback._model = model
    evals.run_eval(1)
    assert "spread over several processes by DeepSpeed ZeRO-3" in str(evals.history[0].skipped)


def test_sharded_modules_are_recognised(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    assert explain_sharding(Line()) is None
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed.device_mesh import init_device_mesh

        sharded = Line()
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        assert "several processes by FSDP" in (explain_sharding(sharded) or "")
    finally:
        distributed.destroy_process_group()


# --- Best models and early stopping -------------------------------------------------------------

REWARDS = [0.2, 0.9, 0.4, 0.3, 0.1, 0.0]


def by_eval(eval: int, sample: int) -> float:
    return REWARDS[eval]


BEST = {"metric_for_best_model": "eval_heldout_reward", "save_only_model": True}


def no_own_evaluation(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the trainer's own evaluation ran")


@pytest.mark.parametrize(
    "strategy",
    [
        {"save_strategy": "best"},
        {"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 1},
        {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1},
    ],
    ids=["without eval_strategy", "best, answered", "steps, answered"],
)
def test_the_best_model_by_the_held_out_reward_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: dict[str, Any]
) -> None:
    known = Known(by_eval)
    evals = make_evals(tmp_path, builder=known, every_steps=1)
    trainer = make_trainer(tmp_path, steps=4, load_best_model_at_end=True, **BEST, **strategy)
    monkeypatch.setattr(trainer, "evaluation_loop", no_own_evaluation)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    assert steps_of(evals) == [1, 2, 3, 4]  # none twice
    assert trainer.state.best_global_step == 2
    assert trainer.state.best_metric == 0.9
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert trainer.model.layer.weight.item() == known.seen[1]
    assert len(set(known.seen)) == 4  # the last point is of the last weights, not of the best
    saved = sorted(path.name for path in (tmp_path / "trainer").glob("checkpoint-*"))
    every = [f"checkpoint-{step}" for step in (1, 2, 3, 4)]
    assert saved == (every[:2] if strategy["save_strategy"] == "best" else every)


def test_step_0_is_not_the_best_for_there_is_no_checkpoint_of_it(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, lambda eval, sample: [0.9, 0.1, 0.2][eval], at_start=True)
    trainer = make_trainer(
        tmp_path, steps=4, load_best_model_at_end=True, save_strategy="best", **BEST
    )
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    assert trainer.state.best_global_step == 4


def test_early_stopping_goes_by_the_held_out_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Known(by_eval)
    evals = make_evals(tmp_path, builder=known)
    trainer = make_trainer(
        tmp_path,
        EarlyStoppingCallback(early_stopping_patience=2),
        steps=20,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        **BEST,
    )
    monkeypatch.setattr(trainer, "evaluation_loop", no_own_evaluation)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 8
    assert steps_of(evals) == [2, 4, 6, 8]
    assert trainer.model.layer.weight.item() == known.seen[1]


def test_the_trainer_is_answered_at_steps_of_its_own_and_with_whole_evals(tmp_path: Path) -> None:
    heard = Heard()
    evals = make_evals(tmp_path, max_overhead=1e-9, min_samples=1)
    settings = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "heldout_n"}
    trained(tmp_path, evals, heard, steps=6, **settings)
    assert [row["step"] for row in heard.evaluated] == [2, 4, 6]
    assert [row["eval_heldout_n"] for row in heard.evaluated] == [4, 4, 4]
    assert [(row["step"], row.get("eval_heldout_n")) for row in eval_rows(heard.rows)] == [
        (2, 1),  # what the budget allows, on the eval's own cadence
        (2, 4),
        (4, None),  # … which is nothing: a skip
        (4, 4),
        (6, 4),
    ]


def test_after_training_and_for_other_datasets_evaluate_is_the_trainers_own(
    tmp_path: Path,
) -> None:
    class Asks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            asked.append(trainer.evaluate(DATA[:2], metric_key_prefix="eval_two"))

    asked: list[dict[str, float]] = []
    trainer = make_trainer(tmp_path, Asks(), steps=1, eval_strategy="steps", eval_steps=1)
    HeldoutCallback(make_evals(tmp_path)).attach(trainer)
    trainer.train()
    assert "eval_two_loss" in asked[0]
    assert "eval_loss" in trainer.evaluate()


def test_after_ctrl_c_evaluate_is_the_trainers_own_and_training_can_begin_again(
    tmp_path: Path,
) -> None:
    class Interrupts(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            if state.global_step == 2 and not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt

    interrupted: list[bool] = []
    evals = make_evals(tmp_path)
    trainer = make_trainer(tmp_path, Interrupts(), steps=4, eval_strategy="steps", eval_steps=2)
    HeldoutCallback(evals).attach(trainer)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.is_in_train  # nobody has told it
    assert "eval_loss" in trainer.evaluate()
    trainer.train()
    assert steps_of(evals)[-2:] == [2, 4]
    assert "eval_loss" in trainer.evaluate()


def test_a_best_metric_of_evals_that_are_off_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HELDOUT_EVAL_EVERY_STEPS", raising=False)
    strategy = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best"}
    trainer = make_trainer(tmp_path, steps=4, load_best_model_at_end=True, **BEST, **strategy)
    HeldoutCallback.from_environment(samples(), Known(by_eval)).attach(trainer)
    with pytest.raises(InvalidInput, match="heldout's evals are off: turn them on"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_the_trainer_can_keep_its_own_evaluation(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=2, eval_strategy="steps", eval_steps=2)
    evals = make_evals(tmp_path)
    HeldoutCallback(evals, answer_evaluate=False).attach(trainer)
    trainer.train()
    assert sum("eval_loss" in row for row in trainer.state.log_history) == 1
    assert steps_of(evals) == [2]


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_skip_is_not_the_best_and_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, strategy: str
) -> None:
    class Sometimes(Known):
        def __call__(self, model: Any) -> Any:
            made = super().__call__(model)
            if len(self.seen) in (1, 3):
                raise RuntimeError("busy")
            return made

    heard = Heard()
    evals = make_evals(tmp_path, builder=Sometimes(by_eval), every_steps=1)
    settings = {} if strategy == "no" else {"eval_strategy": "steps", "eval_steps": 1}
    patience = [] if strategy == "no" else [EarlyStoppingCallback(early_stopping_patience=3)]
    trainer = make_trainer(
        tmp_path, heard, *patience, steps=5, save_strategy="best", **BEST, **settings
    )
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 5  # the skip at 3 is not one of those that got worse
    assert trainer.state.best_global_step == 2
    assert trainer.state.best_metric == 0.9
    skipped = [row for row in heard.rows if "eval_heldout_skipped" in row]
    assert [row["step"] for row in skipped] == [1, 3]
    logged = json.dumps(trainer.state.log_history)
    assert "NaN" not in logged
    assert "Infinity" not in logged
    if strategy == "steps":
        assert "there is no eval_heldout_reward at step 3" in caplog.text


@pytest.mark.parametrize(
    ("attached", "answering", "settings", "said"),
    [
        (True, True, {"eval_strategy": "steps", "eval_steps": 1}, "which has eval_heldout_reward"),
        (True, False, {"eval_strategy": "steps", "eval_steps": 1, **BEST}, "leave out answer_eva"),
        (False, True, {"save_strategy": "best", **BEST}, "attach(trainer) is needed"),
    ],
    ids=["not ours", "not answered", "not attached"],
)
def test_a_best_metric_that_would_never_come_is_refused_before_training(
    tmp_path: Path, attached: bool, answering: bool, settings: dict[str, Any], said: str
) -> None:
    callback = HeldoutCallback(make_evals(tmp_path), answer_evaluate=answering)
    settings = {"metric_for_best_model": "loss", **settings}
    trainer = make_trainer(tmp_path, *([] if attached else [callback]), **settings)
    if attached:
        callback.attach(trainer)
    with pytest.raises(InvalidInput, match=said.replace("(", r"\(").replace(")", r"\)")):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_name_that_heldout_does_not_have_is_an_error_of_the_trainer() -> None:
    answered = ours._TrainerMetrics({}, ["heldout"])
    assert answered["eval_heldout_reward"] != answered["eval_heldout_reward"]  # NaN
    assert answered.get("eval_heldout_reward") is None
    with pytest.raises(KeyError):
        answered["eval_loss"]


# --- Stopping and resuming ----------------------------------------------------------------------


def test_a_monitor_stops_training_and_the_last_weights_are_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = make_evals(
        tmp_path, by_eval, monitor=lambda points: "it got worse" if len(points) == 2 else None
    )
    other = make_evals(tmp_path, label="other", every_steps=3)
    trainer = trained(tmp_path, [one, other], steps=20)
    assert trainer.state.global_step == 4
    assert steps_of(one) == [2, 4]
    assert steps_of(other) == [3, 4]
    assert caplog.text.count("training stops at step 4: rl_eval: it got worse") == 1
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [1, 2, 3, 4]


def test_a_request_from_outside_stops_training_at_the_end_of_the_step(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, every_steps=10)

    class Asks(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            if state.global_step == 2:
                request_stop(evals.run_dir, "enough")

    trainer = trained(tmp_path, evals, Asks(), steps=20)
    assert trainer.state.global_step == 3
    assert steps_of(evals) == [3]
    assert evals.history[0].final


def test_a_training_that_others_stop_ends_with_its_last_weights(tmp_path: Path) -> None:
    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            control.should_training_stop = state.global_step == 3

    heard = Heard()
    trainer = make_trainer(tmp_path, heard, steps=20)
    evals = make_evals(tmp_path)
    HeldoutCallback(evals).attach(trainer)
    trainer.add_callback(Stops())  # after ours
    trainer.train()
    assert steps_of(evals) == [2, 3]
    assert [row["step"] for row in eval_rows(heard.rows)] == [2, 3]


def test_a_checkpoint_has_the_row_of_its_own_weights(tmp_path: Path) -> None:
    trained(tmp_path, make_evals(tmp_path), steps=3, save_strategy="steps", save_steps=2)
    for step, rows in ((2, [2]), (3, [2, 3])):
        saved = tmp_path / "trainer" / f"checkpoint-{step}" / "trainer_state.json"
        history = json.loads(saved.read_text())["log_history"]
        assert [row["step"] for row in eval_rows(history)] == rows


def test_weights_that_were_replaced_by_the_best_are_not_taken_for_the_last(tmp_path: Path) -> None:
    """Stopped where no callback sees it: by the trainer's own evaluation after the epoch."""
    known = Known(by_eval)
    evals = make_evals(tmp_path, builder=known, every_steps=3)
    trainer = make_trainer(
        tmp_path,
        EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=1e9),
        steps=20,
        eval_strategy="epoch",
        save_strategy="epoch",
        metric_for_best_model="loss",
        load_best_model_at_end=True,
        save_only_model=True,
    )
    HeldoutCallback(evals, answer_evaluate=False).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 8
    assert steps_of(evals) == [3, 6, 8]
    assert "has been loaded in their place" in str(evals.history[-1].skipped)
    assert len(known.seen) == 2


def test_a_resumed_training_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    class Dies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            if state.global_step == 5:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"steps": 8, "save_strategy": "steps", "save_steps": 2}
    evals = make_evals(tmp_path, at_start=True)
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, evals, Dies(), **settings)
    assert steps_of(evals) == [0, 2, 4]
    evals = make_evals(tmp_path, at_start=True)
    torch.manual_seed(0)
    trainer = make_trainer(tmp_path, **settings)
    HeldoutCallback(evals).attach(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-2"))
    assert steps_of(evals) == [0, 2, 4, 6, 8]  # 4 came out with the same weights, and is known
    assert [point.step for point in evals.points] == [0, 2, 4, 6, 8]
    rows = eval_rows(trainer.state.log_history)
    assert [(row["step"], row["eval_heldout_step"]) for row in rows] == [
        (step, step) for step in (0, 2, 4, 6, 8)
    ]


# --- What it is made of -------------------------------------------------------------------------


def test_evals_that_would_write_to_the_same_place_are_refused(tmp_path: Path) -> None:
    one = make_evals(tmp_path)
    with pytest.raises(InvalidInput, match="eval_heldout_…; give each a label"):
        HeldoutCallback(one, make_evals(tmp_path, run_dir=tmp_path / "b"))
    with pytest.raises(InvalidInput, match="eval_heldout_…; give each a label"):
        HeldoutCallback(one, make_evals(tmp_path, label="heldout"))
    same = make_evals(tmp_path, label="other", run_dir=tmp_path / "x" / ".." / "c", every_steps=0)
    with pytest.raises(InvalidInput, match="the same run_dir"):
        HeldoutCallback(make_evals(tmp_path, run_dir=tmp_path / "c"), same)
    with pytest.raises(InvalidInput, match="takes PeriodicEvals, got"):
        HeldoutCallback([one])  # type: ignore[arg-type]


def test_it_is_attached_to_one_trainer(tmp_path: Path) -> None:
    callback = HeldoutCallback(make_evals(tmp_path))
    with pytest.raises(InvalidInput, match="takes a transformers.Trainer, got"):
        callback.attach(Line())
    callback.attach(make_trainer(tmp_path))
    with pytest.raises(InvalidInput, match="attached to another trainer"):
        callback.attach(make_trainer(tmp_path))


def test_all_of_it_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELDOUT_EVAL_EVERY_STEPS", "2")
    monkeypatch.setenv("HELDOUT_EVAL_NUM", "3")
    beats: list[tuple[str, dict[str, Any]]] = []
    callback = HeldoutCallback.from_environment(
        samples(),
        Known(lambda eval, sample: 0.5),
        lambda name, fields: beats.append((name, fields)),
        run_dir=tmp_path / "curve",
    )
    make_trainer(tmp_path, callback, steps=4).train()
    assert [(name, fields["step"], fields["eval_n"]) for name, fields in beats] == [
        ("rl_eval", 2, 3),
        ("rl_eval", 4, 3),
    ]


@pytest.mark.parametrize("off", [{}, {"EVERY_STEPS": "0"}, {"EVERY_STEPS": "2", "NUM": "0"}])
def test_the_environment_can_leave_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: dict[str, str]
) -> None:
    for name in ("EVERY_STEPS", "NUM"):
        monkeypatch.delenv(f"HELDOUT_EVAL_{name}", raising=False)
    for name, value in off.items():
        monkeypatch.setenv(f"HELDOUT_EVAL_{name}", value)
    monkeypatch.chdir(tmp_path)
    callback = HeldoutCallback.from_environment(iter(samples()), broken)
    trainer = make_trainer(tmp_path, steps=2, eval_strategy="steps", eval_steps=2)
    callback.attach(trainer)
    trainer.train()
    assert eval_rows(trainer.state.log_history) == []
    assert sum("eval_loss" in row for row in trainer.state.log_history) == 1
    assert not (tmp_path / "outputs").exists()


def test_an_eval_that_rides_on_rollouts_is_only_logged_until_the_end(tmp_path: Path) -> None:
    riding = make_evals(tmp_path, by_eval, label="riding", every_steps=1)
    riding.in_rollout_phase = True  # type: ignore[attr-defined]

    class Window(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            if state.global_step == 1:
                riding.run_eval(state.global_step, kw["model"])

    heard = Heard()
    trained(tmp_path, riding, heard, Window(), steps=3)
    assert steps_of(riding) == [1, 3]
    rows = [(row["step"], row["eval_riding_step"]) for row in eval_rows(heard.rows, "riding")]
    assert rows == [(2, 1), (3, 3)]
    assert [row["eval_riding_step"] for row in heard.evaluated] == [3]


@pytest.mark.parametrize(
    ("every_steps", "settings"),
    [(2, {"save_strategy": "best", **BEST}), (100, {"eval_strategy": "steps", "eval_steps": 2})],
    ids=["on cadence", "where the trainer evaluates"],
)
def test_every_process_does_what_the_first_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_steps: int, settings: dict[str, Any]
) -> None:
    """The second of two: it has no results of its own, and the first has found a stop file."""

    class Second:
        rank, world, patience = 1, 2, None

        def broadcast(self, mine: bytes) -> bytes:
            calls.append(mine)
            return said.pop(0)

    row = b'{"rl_eval": {"step": 2, "fields": {"eval_heldout_reward": 0.5}, "cut": false}}'
    calls: list[bytes] = []
    # What came out at 2? Stop after 2? What is final?
    said = [row, b"true", b"{}"]
    monkeypatch.setattr("heldout.training.trainer_hooks.current_ranks", Second)
    evals = make_evals(tmp_path, broken, ranks=Second(), every_steps=every_steps)
    trainer = trained(tmp_path, evals, steps=20, **settings)
    assert calls == [b"{}", b"false", b"{}"]
    assert said == []
    assert trainer.state.global_step == 2
    assert trainer.state.best_global_step == (2 if BEST.items() <= settings.items() else None)
    assert evals.history == []


def test_a_mean_of_fewer_samples_is_never_the_best(tmp_path: Path) -> None:
    """A budget takes one sample of eight first, and that one happens to be right."""
    evals = make_evals(
        tmp_path, lambda eval, sample: 1.0 if eval == 0 else 0.5, max_overhead=1e9, min_samples=1
    )
    trainer = trained(tmp_path, evals, steps=6, save_strategy="best", **BEST)
    assert [point.reward for point in evals.history] == [1.0, 0.5, 0.5]
    assert trainer.state.best_metric == 0.5
    assert trainer.state.best_global_step == 4


def test_a_second_training_of_another_model_is_measured_from_its_beginning(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, at_start=True)
    make_trainer(tmp_path, HeldoutCallback(evals), steps=2).train()
    make_trainer(tmp_path, HeldoutCallback(evals), steps=2, seed=5).train()
    assert steps_of(evals) == [0, 2, 0, 2]
    assert len({point.session for point in evals.points}) == 1


# --- Beside the training ------------------------------------------------------------------------


def train_beside(trainer: Any, **settings: Any) -> None:
    waits = {"when_full": "wait", **settings}
    with AsyncEvalDispatcher(**waits):
        trainer.train()


def test_beside_the_training_rows_hold_only_what_belongs_to_their_step(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, lambda eval, sample: eval / 10, at_start=True)
    told: list[tuple[str, int]] = []
    logger = CallableLogger(lambda name, step, fields: told.append((name, step)))
    trainer = make_trainer(tmp_path, steps=5)
    HeldoutCallback(evals).attach(trainer)
    train_beside(trainer, loggers=[logger])
    assert sorted(steps_of(evals)) == [0, 2, 4, 5]
    assert sorted(told) == [("rl_eval", step) for step in (0, 2, 4, 5)]
    rows = eval_rows(trainer.state.log_history)
    assert {row["eval_heldout_step"] == row["step"] for row in rows} == {True}
    assert rows[-1]["eval_heldout_step"] == 5


def test_beside_the_training_a_best_checkpoint_cannot_be_chosen(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, save_strategy="best", metric_for_best_model="eval_heldout_reward"
    )
    HeldoutCallback(make_evals(tmp_path)).attach(trainer)
    with pytest.raises(InvalidInput, match="its result is not there yet"):
        train_beside(trainer)


def test_what_the_trainer_asks_for_is_measured_once_and_waited_for(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, every_steps=1)
    trainer = make_trainer(tmp_path, steps=4, eval_strategy="steps", eval_steps=2)
    HeldoutCallback(evals).attach(trainer)
    train_beside(trainer)
    points = read_points(evals.run_dir / "curve.jsonl")
    assert sorted(p.step for p in points) == [1, 2, 3, 4]
    assert {p.step for p in points if p.lag_steps is None} == {2}  # 4 is the last, and waited for
    assert all(p.has_result for p in points)


def test_an_eval_knows_the_checkpoint_of_its_weights(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(eval: int, sample: int) -> float:
        assert gate.wait(60)
        return 0.5

    evals = make_evals(tmp_path, slow, snapshots=SnapshotPool(size=4))
    trainer = make_trainer(tmp_path, steps=3, save_strategy="steps", save_steps=2)
    HeldoutCallback(evals).attach(trainer)
    seen: list[Any] = []

    class Looks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            if state.global_step == 3:
                seen.extend(pending_evals(evals.run_dir))
                gate.set()

    trainer.add_callback(Looks())
    trainer.callback_handler.callbacks.insert(1, trainer.callback_handler.callbacks.pop())
    train_beside(trainer)
    assert [(p.step, Path(p.saved_at).name) for p in seen] == [(2, "checkpoint-2")]
    assert Path(seen[0].saved_at).is_dir()


# --- Training prompts ---------------------------------------------------------------------------


@pytest.mark.parametrize("attached", [True, False])
def test_training_prompts_that_are_held_out_are_refused_before_training(
    tmp_path: Path, attached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def train(name: str, *prompts: str, **settings: Any) -> None:
        evals = make_evals(tmp_path / name)
        callback = HeldoutCallback(evals, **settings)
        trainer = make_trainer(tmp_path, steps=1, remove_unused_columns=False)
        trainer.train_dataset = [
            {**row, "prompt": prompt} for row, prompt in zip(DATA, prompts, strict=False)
        ]
        trainer.data_collator = lambda rows: {
            key: torch.stack([row[key] for row in rows]) for key in ("x", "labels")
        }
        if attached:
            callback.attach(trainer)
        else:
            trainer.add_callback(callback)
        trainer.train()
        assert steps_of(evals) == [1]

    with pytest.raises(
        InvalidInput,
        match=r"2 training samples have the same prompt .* '3' \(held out as 's3'\), '1'",
    ):
        train("refused", "3", "5", " 1 ")
    train("apart", "4", "5", "6")
    assert "held-out set" not in caplog.text
    train("allowed", "4", "1", allow_overlap=True)
    assert (
        "1 training sample has the same prompt as a held-out sample: '1' (held out as 's1'); allow"
        in caplog.text
    )


def test_a_training_set_without_prompts_is_said_to_be_unchecked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    HeldoutCallback(make_evals(tmp_path)).attach(make_trainer(tmp_path))
    assert "was not checked: it has no messages, prompt or question, only x, labels" in caplog.text


# --- Before the save or after it ----------------------------------------------------------------

CRASHES = """
import os, sys
from pathlib import Path
from heldout.integrations.transformers import HeldoutCallback
from tests.integration.line_trainer import make_evals, make_trainer

folder, after_save = Path(sys.argv[1]), sys.argv[2] == "after"
dies = sys.argv[3] == "dies"

def scored(eval, sample):
    if dies and eval == 1:
        os._exit(9)  # as of a driver, or of the kernel's out-of-memory killer
    return 0.5

evals = make_evals(folder, scored)
trainer = make_trainer(folder, steps=6, save_strategy="steps", save_steps=2)
HeldoutCallback(evals, after_save=after_save).attach(trainer)
resume = any((folder / "trainer").glob("checkpoint-*"))
trainer.train(resume_from_checkpoint=resume)
"""


def train_and_crash(folder: Path, order: str, then: str) -> tuple[int, list[str]]:
    code = subprocess.run(
        [sys.executable, "-c", CRASHES, str(folder), order, then], check=False, capture_output=True
    )
    assert code.returncode in (0, 9), code.stderr.decode()
    return code.returncode, sorted(path.name for path in (folder / "trainer").glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("order", "left"), [("before", ["checkpoint-2"]), ("after", ["checkpoint-2", "checkpoint-4"])]
)
def test_an_eval_that_ends_the_process_costs_no_step_where_it_comes_after_the_save(
    tmp_path: Path, order: str, left: list[str]
) -> None:
    assert train_and_crash(tmp_path, order, "dies") == (9, left)
    status, saved = train_and_crash(tmp_path, order, "lives")
    assert (status, saved[-1]) == (0, "checkpoint-6")
    points = current_points(read_points(tmp_path / "rl_eval" / "curve.jsonl"))
    assert [(point.step, point.reward) for point in points] == [(2, 0.5), (4, 0.5), (6, 0.5)]


def test_after_the_save_there_is_a_row_for_each_eval_and_the_same_weights(tmp_path: Path) -> None:
    ends = []
    for after_save in (False, True):
        folder = tmp_path / str(after_save)
        evals = make_evals(folder, at_start=True)
        # At step 3 nothing is due; at 2 and 6 an eval and a save, at 4 an eval alone.
        trainer = make_trainer(folder, steps=7, save_strategy="steps", save_steps=3)
        HeldoutCallback(evals, after_save=after_save).attach(trainer)
        trainer.train()
        rows = [row["step"] for row in eval_rows(trainer.state.log_history)]
        assert rows == steps_of(evals) == [0, 2, 4, 6, 7]
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        ends.append((losses, [value.tolist() for value in trainer.model.state_dict().values()]))
        state = json.loads((folder / "trainer/checkpoint-6/trainer_state.json").read_text())
        own = [row["step"] for row in eval_rows(state["log_history"])]
        assert own == ([0, 2, 4] if after_save else [0, 2, 4, 6])
    assert ends[0] == ends[1]


def test_a_save_that_is_called_off_does_not_lose_its_eval(tmp_path: Path) -> None:
    class CallsOff(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            control.should_save = False

    evals = make_evals(tmp_path)
    trainer = make_trainer(tmp_path, steps=5, save_strategy="steps", save_steps=2)
    HeldoutCallback(evals, after_save=True).attach(trainer)
    trainer.add_callback(CallsOff())
    with AsyncEvalDispatcher(when_full="wait"):
        trainer.train()
    lines = (evals.run_dir / "curve.jsonl").read_text()
    assert "scheduled, not finished" in lines
    assert "checkpoint-" not in lines  # nothing is saved there that it could be measured from
    assert {point.step for point in evals.points} == {2, 4, 5}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_strategy": "steps", "eval_steps": 2}, "evaluates before it does"),
        ({"save_strategy": "best", **BEST}, "Leave out after_save=True"),
    ],
)
def test_what_a_trainer_decides_by_evals_before_it_saves_is_refused_after_the_save(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    trainer = make_trainer(tmp_path, **settings)
    HeldoutCallback(make_evals(tmp_path), after_save=True).attach(trainer)
    with pytest.raises(InvalidInput, match=message):
        trainer.train()
