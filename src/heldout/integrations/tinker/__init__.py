"""heldout evals inside the training loops of tinker-cookbook.

    config = with_heldout(config, HeldoutEvaluator(samples, score_fn, renderer,
                                                   name="capitals", max_tokens=64),
                          async_eval=True)
    async with AsyncEvalDispatcher(run_dir=…) as evals:
        with use_async_eval_dispatcher(evals):
            await train.main(config)      # all of its evals overlap with it
            await evaluate_final(config)  # its loops never measure the last weights

The package gives an evaluator a sampling client and nothing else. That client is bound to the
weights of its step, so it can be asked later, while training goes on; `steps` finds out which step
that is. Nothing of the package is replaced unless `async_eval` asks for it (`asynchronous`).
"""

from __future__ import annotations

from heldout.integrations.tinker.endpoint import TinkerEndpoint
from heldout.integrations.tinker.evaluator import HeldoutEvaluator
from heldout.integrations.tinker.training import evaluate_final, with_heldout

__all__ = ["HeldoutEvaluator", "TinkerEndpoint", "evaluate_final", "with_heldout"]
