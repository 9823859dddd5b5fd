"""Time an eval of a small language model on this machine's cores: together and one by one.

The weights are those of the demo (SmolLM2-135M-Instruct). One by one is `model.generate` with a
prompt at a time, as evaluation loops in training scripts are usually written.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

from common import emit, options, say
from heldout._live.decoding import Decoder, Prompt
from heldout.models.demo import weights_folder

PROMPTS, NEW, ROUNDS = 32, 32, 2
THINGS = ("a river", "the moon", "bread", "a violin", "winter", "a lighthouse", "salt", "chess")
ASKED = (
    "What is {}?",
    "Write one sentence about {}.",
    "Why do people like {}?",
    "Name three things that have to do with {}.",
)


def load() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = weights_folder()
    return (
        AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval(),
        AutoTokenizer.from_pretrained(folder),
    )


def prompts(tokenizer: Any, count: int, new: int) -> list[Prompt]:
    asked = []
    for i in range(count):
        text = ASKED[i % len(ASKED)].format(THINGS[i // len(ASKED) % len(THINGS)])
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        asked.append(Prompt(tuple(ids), max_new=new))
    return asked


def one_by_one(model: Any, asked: list[Prompt]) -> list[tuple[int, ...]]:
    import torch

    found = []
    for prompt in asked:
        ids = torch.tensor([prompt.ids])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=prompt.max_new,
            )
        found.append(tuple(out[0, len(prompt.ids) :].tolist()))
    return found


def main() -> None:
    args = options(__doc__).parse_args()
    count, new, rounds = (8, 4, 2) if args.quick else (PROMPTS, NEW, ROUNDS)
    say("midrun, loading the weights")
    model, tokenizer = load()
    asked = prompts(tokenizer, count, new)
    decoder = Decoder(model, tokenizer)
    decoder.decode(asked[:2])  # imports, first allocations
    one_by_one(model, [Prompt(asked[0].ids, 2)])
    together: list[float] = []
    singly: list[float] = []
    answers: list[tuple[int, ...]] = []
    size = count // rounds
    # In turns: what disturbs the machine for a while disturbs both.
    for start in range(0, count, size):
        say(f"midrun, prompts {start} to {start + size} one by one, then all together")
        clock = time.perf_counter()
        answers += one_by_one(model, asked[start : start + size])
        singly.append(time.perf_counter() - clock)
        clock = time.perf_counter()
        results = decoder.decode(asked)
        together.append(time.perf_counter() - clock)
    same = sum(
        getattr(result, "ids", None) == answer
        for result, answer in zip(results, answers, strict=True)
    )
    if same < 0.9 * count:  # sums in another order may tip a close call
        sys.exit(f"only {same} of {count} answers are the same both ways")
    batch, alone = median(together), sum(singly)
    what = f"{count} prompts, {new} new tokens each, SmolLM2-135M on the CPU"
    emit(f"{what}: an eval, as a share of one prompt at a time", batch / alone, "x", target=1 / 5)
    emit("the eval, wall", batch, "s")
    emit("one prompt at a time, wall", alone, "s", ratio=alone / batch)
    emit("answers that are the same both ways", 100 * same / count, "%")


if __name__ == "__main__":
    main()
