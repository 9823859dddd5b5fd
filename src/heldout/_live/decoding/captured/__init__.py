"""Decoding in fixed shapes, so that a GPU can replay a step as one captured graph.

    prepared = cache.prepare(model, turns, rows)
    if prepared is not None:
        batch, plan = prepared
        batch.decode(plan, callbacks)

A batch on its way, from `BatchCache`, which is all that the decoder knows of this package:

1. `capturable.py`: before anything is tried, can the model be captured, and is there Triton?
2. `placing.py`: which of the kept batches knows most of these prompts, and which of its rows does
   each turn get? What another row knows is copied. The result is a `BatchPlan` (`batch_plan.py`).
3. `graphs.py`: for a new shape the kernels are compiled (`launching.py`), the logits of the prompts
   and of the first step are compared with the model's own, and one pass over a chunk of the prompts
   and one step are captured. Meanwhile parts of the model are replaced (`fusing.py`) by kernels of
   Triton (`kernels.py`), or by functions of torch if there is no Triton.
4. The graphs are replayed: the chunks of the prompts, then steps, until all turns have ended.

What is given up, and when:

- A graph, when the model is not as it was at the capture: weights that moved, other adapters,
  another setting of torch (`forward_state`). Training in place leaves it valid.
- A batch with its graphs, when memory runs out, when it is the oldest of four and a fifth is
  needed, and between evals unless `keep_cache` says otherwise.
- The kernels, for good, when they fail or their logits are off: the model is captured without them.
- Captured steps, for good, when that fails as well; `refused` has the reason.
- Known keys and values, before every call that does not say that the weights are the same.

Without a GPU the same steps run uncaptured if `graphs=True` asks for it, as the tests do.
"""

from heldout._live.decoding.captured.placing import BatchCache

__all__ = ["BatchCache"]
