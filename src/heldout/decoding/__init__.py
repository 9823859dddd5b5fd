"""Generation with a live transformers model, which may be in training meanwhile.

    decoder = Decoder(model, tokenizer)
    generations = decoder.decode([Prompt(ids, max_new=128) for ids in prompts])

Decoding on a GPU replays captured CUDA graphs; everything else is a loop over the model's forward
pass. Neither changes the model, and both give the same tokens for the same weights and
prompts every time.
"""

from heldout.decoding.decoder import Decoder
from heldout.decoding.model import unwrap
from heldout.decoding.turn import Generation, Prompt

__all__ = ["Decoder", "Generation", "Prompt", "unwrap"]
