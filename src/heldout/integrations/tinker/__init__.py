"""heldout evals inside the training loops of tinker-cookbook.

    config = with_heldout(config, HeldoutEvaluator(samples, score_fn, renderer,
                                                   name="capitals", max_tokens=64),
                          async_eval=True)
    async with AsyncEvalDispatcher(run_dir=…):
        await train.main(config)      # all of its evals overlap with it
        await evaluate_final(config)  # its loops never measure the last weights

The package gives an evaluator a sampling client and nothing else. That client is bound to the
weights of its step, so it can be sampled from later, while training goes on.
"""

from __future__ import annotations

from heldout._core.versions import check_version

# Before the modules below import the package.
SUPPORTED = ">=0.5.8,<0.6"
check_version("tinker-cookbook", SUPPORTED, why="how its loops call evaluators is not promised")

from heldout.integrations.tinker.endpoint import TinkerEndpoint  # noqa: E402
from heldout.integrations.tinker.evaluator import HeldoutEvaluator  # noqa: E402
from heldout.integrations.tinker.training import evaluate_final, with_heldout  # noqa: E402

__all__ = ["HeldoutEvaluator", "TinkerEndpoint", "evaluate_final", "with_heldout"]
