"""Evaluators into a training's config, and the weights that its loop never measures."""

from __future__ import annotations

import json
import logging
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from heldout.errors import InvalidInput
from heldout.integrations.tinker.asynchronous import (
    AsyncBuilder,
    AsyncBuilders,
    install,
    is_distillation,
)
from heldout.integrations.tinker.endpoint import without_key
from heldout.integrations.tinker.evaluator import HeldoutEvaluator
from heldout.integrations.tinker.package import cookbook, sdk
from heldout.integrations.tinker.steps import Cadence, Step
from heldout.training.run_eval import describe

log = logging.getLogger("heldout")


class Builder:
    """What a config holds of an evaluator. Its loop calls it once, as a training begins."""

    def __init__(self, evaluator: HeldoutEvaluator, log_path: str, cadence: Cadence) -> None:
        self.evaluator = evaluator
        self._log_path, self._cadence = log_path, cadence

    def to_dict(self) -> dict[str, Any]:
        """What the package logs of it, with the rest of the config."""
        return {"heldout": self.evaluator.name}

    def __deepcopy__(self, memo: dict[int, Any]) -> Builder:
        # To log its config, the package copies all of it. Samples and models need not be there
        # twice, and what holds a lock could not be.
        return self

    def __call__(self) -> HeldoutEvaluator:
        self.evaluator.begin(_begun(self._cadence, self._log_path), self._log_path)
        return self.evaluator


def with_heldout(config: Any, *evaluators: HeldoutEvaluator, async_eval: bool = False) -> Any:
    """The config, of `rl.train`, `supervised.train` or `distillation`, with these evaluators beside
    its own.

    Points go to `<log_path>/heldout` where an evaluator has no `run_dir`. Two evaluators of one
    name are refused: their metrics would be one.

    `async_eval`: all evaluators of the training, and not these alone, run on the dispatcher that is
    installed around it, and their metrics are logged at their steps with the loop's own logger,
    which is closed when the dispatcher has drained.
    """
    if not evaluators and not async_eval:
        raise InvalidInput("with_heldout(config, evaluator, …) takes at least one evaluator")
    names = [each.name for each in evaluators_of(config)]
    for evaluator in evaluators:
        if not isinstance(evaluator, HeldoutEvaluator):
            raise InvalidInput(
                f"with_heldout takes HeldoutEvaluators, got {evaluator!r:.100}; others go into "
                "evaluator_builders, and run asynchronously with async_eval=True, too"
            )
        if evaluator.name in names:
            raise InvalidInput(
                f"two evaluators are called {evaluator.name!r}, and the loop would keep the "
                "metrics of one; give them different names"
            )
        names.append(evaluator.name)
    log_path = config.log_path
    for evaluator in evaluators:
        if evaluator.run_dir is None:
            if "://" in log_path:
                raise InvalidInput(
                    f"log_path is {log_path!r}, and a curve is a local file: give the evaluator "
                    f"{evaluator.name!r} a run_dir"
                )
            evaluator.run_dir = (Path(log_path) / "heldout").absolute()
    cadence = Cadence(config.eval_every, counted=is_counted(type(config)))
    builders = [Builder(evaluator, log_path, cadence) for evaluator in evaluators]
    theirs = config.evaluator_builders
    # Whoever has asked for it once, and calls this again with further evaluators, still has.
    async_eval = async_eval or isinstance(theirs, AsyncBuilders)
    if not async_eval:
        together = [*theirs, *builders]
    else:
        install()
        if is_distillation(type(config)):
            begin = partial(_begun, cadence, log_path)
            ours = (Builder, AsyncBuilder)
            theirs = [b if isinstance(b, ours) else AsyncBuilder(b, begin) for b in theirs]
        together = AsyncBuilders([*theirs, *builders])
    return import_module("chz").replace(config, evaluator_builders=together)


COUNTED = (
    "tinker_cookbook.supervised.train",
    "tinker_cookbook.distillation.train_on_policy",
    "tinker_cookbook.distillation.train_off_policy",
    "tinker_cookbook.distillation.sdft",
)
"""Loops that evaluate at every multiple of `eval_every` and at no other step, one after the other.
The RL loops do not, and need not be counted; that of DPO adds its last step."""


def is_counted(config_type: type) -> bool:
    return any(base.__module__ in COUNTED for base in config_type.__mro__)


def evaluators_of(config: Any) -> list[HeldoutEvaluator]:
    return [b.evaluator for b in config.evaluator_builders if isinstance(b, Builder)]


async def evaluate_final(
    config: Any, *, service_client: Any = None, step: int | None = None
) -> dict[str, float]:
    """Measure the last weights that the training has saved, unless they have a result.

    Call it after `main`, inside the dispatcher's block where there is one. The step is what the
    checkpoint says, or `step`. Returns the metrics of all evaluators, as a loop would get them.
    """
    evaluators = evaluators_of(config)
    if not evaluators:
        raise InvalidInput("the config has no HeldoutEvaluator; with_heldout puts it there")
    utils = cookbook("checkpoint_utils")
    last = utils.get_last_checkpoint(config.log_path, required_key="sampler_path")
    if last is None:
        raise InvalidInput(
            f"{config.log_path} has no checkpoint with sampler weights, so there is nothing to "
            "measure; the training saves one when it ends"
        )
    found = Step(step, "given") if step is not None else _step_of(last, config)
    for evaluator in evaluators:
        await evaluator.note_missed(found)
    wanted = [e for e in evaluators if not e.has_measured(found.number, last.sampler_path)]
    metrics: dict[str, float] = {}
    if not wanted:
        return metrics
    try:
        client = await _client(service_client, config, last.sampler_path)
    except Exception as problem:  # noqa: BLE001 - the reason of the skip
        why = without_key(f"sampling client: {describe(problem)}")
        log.warning("the last weights cannot be sampled from: %s", why)
        for evaluator in wanted:
            metrics |= await evaluator.skip(found.number, why)
        return metrics
    for evaluator in wanted:
        metrics |= await evaluator.measure(
            client, found, final=last.name == "final", saved_at=last.sampler_path
        )
    return metrics


async def _client(service_client: Any, config: Any, sampler_path: str) -> Any:
    if service_client is None:
        service_client = sdk().ServiceClient(base_url=config.base_url)
    return await service_client.create_sampling_client_async(model_path=sampler_path)


# --- Where training is --------------------------------------------------------------------------


def _begun(cadence: Cadence, log_path: str) -> Cadence:
    """That of a training which begins now."""
    return Cadence(cadence.every, _first_step(log_path), cadence.counted)


def _first_step(log_path: str) -> int | None:
    """The step that a training of this log_path begins at; None where that cannot be known."""
    last = cookbook("checkpoint_utils").get_last_checkpoint(log_path)
    if last is None:
        return 0
    if last.epoch is None:
        batch: int | None = last.batch
        return batch
    # The supervised loop counts batches within an epoch, but names its checkpoints by step.
    return int(last.name) if last.name.isdecimal() else None


def _step_of(checkpoint: Any, config: Any) -> Step:
    # Two loops do not say in a checkpoint how many updates it has. The supervised one saves while
    # later updates are in flight, and numbers batches within an epoch. The async one calls its
    # last step the one it was configured to reach, even where it discarded stale samples and made
    # fewer updates. Both log a row per update, and their final checkpoint has them all.
    is_async = getattr(config, "async_config", None) is not None
    is_final = checkpoint.name == "final"
    if checkpoint.epoch is None and checkpoint.batch is not None and not (is_async and is_final):
        return Step(checkpoint.batch, "checkpoint")
    row_of_update = "training_client/step" if is_async else "train_mean_nll"
    logged = _last_logged(config.log_path, row_of_update) if is_final else None
    if logged is None:
        raise InvalidInput(
            f"the checkpoint {checkpoint.name!r} in {config.log_path} does not say which step it "
            "is of; evaluate_final(config, step=…)"
        )
    # Step i of the log is the update that leads from i to i + 1.
    return Step(logged + 1, "checkpoint")


def _last_logged(log_path: str, key: str) -> int | None:
    """The step of the last row of metrics.jsonl that has this key."""
    path = Path(log_path) / "metrics.jsonl"
    if not path.exists():
        return None
    last = None
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            step = row.get("step") if key in row else None
        except (ValueError, AttributeError, TypeError):
            continue  # a line that was cut off
        if isinstance(step, int):
            last = step
    return last
