"""Generation with a live transformers model, which may be in training meanwhile.

    decoder = Decoder(model, tokenizer)
    generations = decoder.decode([Prompt(ids, max_new=128) for ids in prompts])

The model is left as it was, and the same weights and prompts give the same tokens every time.

A turn on its way through the room:

1. `decoder.py`: `Decoder.decode` takes the model out of its wrappers (`model.py`), cuts the prompts
   into batches by their order alone, and makes a `Turn` of each (`turn.py`). Gradients are off from
   here on, and so is whatever would choose its kernels by timing (`deterministic_inference`).
2. The batch is given to the first way that works for this model, from the fastest to the one that
   asks least of it: captured steps (`captured/`, on a GPU), a loop over the forward pass
   (`eager.py`), the model's own `generate` (`own_generate.py`), the same row by row.
3. `checking.py`: the first time, a way has the logits of its first two tokens compared with one
   plain forward pass without a cache. If they are off, the turns begin again in the next way, and
   the reason is on record. If no way is right, a turn has an error instead of an answer.
4. Captured steps first plan the batch (`captured/placing.py`): which row each turn gets, and how
   many tokens of its prompt that row's key-value cache holds already. The other ways keep nothing.
5. The prompts are read into the cache: in chunks of fixed size (`captured/graphs.py`), or in one
   pass over all rows, after one over the prefix that they share (`eager.py`).
6. A step gives the logits of every row's next token, and `choosing.py` takes the likeliest or draws
   one, by a random stream of the row's own. In captured steps that is part of the graph, and the
   host reads the tokens of several steps at a time.
7. `Callbacks.take` adds the token to its `Turn`. A turn ends with an end token, a stop text or its
   limit, and the caller gets its `Generation` at once. Its row leaves the batch, or runs on unread
   where shapes are fixed. A row without finite logits ends with an error; the others go on.
8. A batch that runs out of memory is thrown away, and what is not done is decoded again in halves.

Beside the loop, `chat.py` makes prompts of conversations and messages of generations,
`likelihood.py` rates given texts, and `memory.py` says what a decoder may keep on a GPU between
evals.

Imports go one way. `turn.py` and `model.py` know nothing of the others. The ways do not know the
decoder, nor each other, except that `captured/` takes `common_prefix` from `eager.py`. Only
`Decoder` imports `captured/`, when it first needs it, and without a GPU it never does.

How an answer is scored, when an eval is due and who waits for it do not belong here.
"""

from heldout._live.decoding.decoder import Decoder
from heldout._live.decoding.model import unwrap
from heldout._live.decoding.turn import Generation, Prompt

__all__ = ["Decoder", "Generation", "Prompt", "unwrap"]
