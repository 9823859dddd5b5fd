"""Put evaluators into the config of a training run, and measure its last weights.

The package's loops never evaluate the weights that training ends with: `evaluate_final` does.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import chz
import tinker
from tinker_cookbook import checkpoint_utils

from heldout.errors import InvalidInput
from heldout.integrations.tinker.endpoint import without_key
from heldout.integrations.tinker.evaluator import HeldoutEvaluator
from heldout.integrations.tinker.loops import LoopStep, warn_of_inline, with_async_evals
from heldout.training.background.dispatcher import get_async_eval_dispatcher
from heldout.training.reasons import describe

log = logging.getLogger("heldout")


class EvaluatorBuilder:
    """An evaluator in a config. The loop calls it once, as a training begins."""

    def __init__(self, evaluator: HeldoutEvaluator, config: Any, *, is_async: bool = False) -> None:
        self.evaluator, self._config, self._is_async = evaluator, config, is_async

    def made_async(self) -> EvaluatorBuilder:
        """Return it for a config whose evaluators run asynchronously."""
        return EvaluatorBuilder(self.evaluator, self._config, is_async=True)

    def to_dict(self) -> dict[str, Any]:
        """What the package logs of it, with the rest of the config."""
        return {"heldout": self.evaluator.name}

    def __deepcopy__(self, memo: dict[int, Any]) -> EvaluatorBuilder:
        # To log its config, the package copies all of it. Samples and models need not be there
        # twice, and what holds a lock could not be.
        return self

    def __call__(self) -> HeldoutEvaluator:
        """Begin the evaluator's curve, and return it."""
        # It schedules itself wherever there is a dispatcher, whatever the loop has called.
        if self._is_async and get_async_eval_dispatcher() is None:
            warn_of_inline(self._config.log_path)
        self.evaluator.begin(self._config)
        return self.evaluator


def with_heldout(config: Any, *evaluators: HeldoutEvaluator, async_eval: bool = False) -> Any:
    """Put evaluators into a config, next to those that it has.

    Args:
        config: A config of `rl.train`, `supervised.train` or `distillation`.
        evaluators: Their points go to `<log_path>/heldout` where they have no `run_dir`.
        async_eval: Whether all evaluators of the training, and not these alone, run on the
            dispatcher that is installed around it. Their metrics are logged at their steps with
            the loop's own logger, which is closed when the dispatcher has drained.

    Raises:
        InvalidInput: Two evaluators have one name, so that their metrics would be one; or there is
            none and `async_eval` is not set.
    """
    if not evaluators and not async_eval:
        raise InvalidInput("with_heldout(config, evaluator, …) takes at least one evaluator")
    names = [evaluator.name for evaluator in evaluators_of(config)]
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
    for evaluator in evaluators:
        if evaluator.run_dir is None:
            if "://" in config.log_path:
                raise InvalidInput(
                    f"log_path is {config.log_path!r}, and a curve is a local file: give the "
                    f"evaluator {evaluator.name!r} a run_dir"
                )
            evaluator.run_dir = (Path(config.log_path) / "heldout").absolute()
    builders = [EvaluatorBuilder(evaluator, config) for evaluator in evaluators]
    config = chz.replace(config, evaluator_builders=[*config.evaluator_builders, *builders])
    return with_async_evals(config) if async_eval else config


def evaluators_of(config: Any) -> list[HeldoutEvaluator]:
    """The evaluators that `with_heldout` has put into a config."""
    return [b.evaluator for b in config.evaluator_builders if isinstance(b, EvaluatorBuilder)]


async def evaluate_final(
    config: Any, *, service_client: Any = None, step: int | None = None
) -> dict[str, float]:
    """Measure the last weights that the training has saved, unless they have a result.

    Call it after `main`, inside the dispatcher's block where there is one.

    Args:
        config: The config of `with_heldout`.
        service_client: Makes the sampling client; by default a new `tinker.ServiceClient`.
        step: The step of the weights, where the checkpoint does not say it.

    Returns:
        The metrics of all evaluators, as a loop would get them.

    Raises:
        InvalidInput: The config has no HeldoutEvaluator, there is no checkpoint, or its step is
            not known.
    """
    evaluators = evaluators_of(config)
    if not evaluators:
        raise InvalidInput("the config has no HeldoutEvaluator; with_heldout puts it there")
    last = checkpoint_utils.get_last_checkpoint(config.log_path, required_key="sampler_path")
    if last is None:
        raise InvalidInput(
            f"{config.log_path} has no checkpoint with sampler weights, so there is nothing to "
            "measure; the training saves one when it ends"
        )
    of_step = LoopStep(step, "given") if step is not None else _step_of(last, config)
    for evaluator in evaluators:
        await evaluator.skip_missed(of_step.number)
    unmeasured = [e for e in evaluators if not e.has_measured(of_step.number, last.sampler_path)]
    metrics: dict[str, float] = {}
    if not unmeasured:
        return metrics
    try:
        service = service_client or tinker.ServiceClient(base_url=config.base_url)
        client = await service.create_sampling_client_async(model_path=last.sampler_path)
    except Exception as problem:  # noqa: BLE001 - the training has ended well; this is a skip
        reason = without_key(f"sampling client: {describe(problem)}")
        log.warning("the last weights cannot be sampled from: %s", reason)
        for evaluator in unmeasured:
            metrics |= await evaluator.skip(of_step.number, reason)
        return metrics
    for evaluator in unmeasured:
        metrics |= await evaluator.measure(
            client, of_step, final=last.name == "final", saved_at=last.sampler_path
        )
    return metrics


def _step_of(checkpoint: Any, config: Any) -> LoopStep:
    # Two loops do not say in a checkpoint how many updates it has. The supervised one saves while
    # later updates are in flight, and numbers batches within an epoch. The async one calls its
    # last step the one it was configured to reach, even where it discarded stale samples and made
    # fewer updates. Both log a row per update, and their final checkpoint has them all.
    is_async = getattr(config, "async_config", None) is not None
    is_final = checkpoint.name == "final"
    if checkpoint.epoch is None and checkpoint.batch is not None and not (is_async and is_final):
        return LoopStep(checkpoint.batch, "checkpoint")
    row_of_update = "training_client/step" if is_async else "train_mean_nll"
    logged = _last_logged(config.log_path, row_of_update) if is_final else None
    if logged is None:
        raise InvalidInput(
            f"the checkpoint {checkpoint.name!r} in {config.log_path} does not say which step it "
            "is of; evaluate_final(config, step=…)"
        )
    # Step i of the log is the update that leads from i to i + 1.
    return LoopStep(logged + 1, "checkpoint")


def _last_logged(log_path: str, key: str) -> int | None:
    """The step of the last row of metrics.jsonl that has this key."""
    path = Path(log_path) / "metrics.jsonl"
    if not path.exists():
        return None
    last = None
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a line that was cut off when a training was killed
        if key in row:
            last = row["step"]
    return last
