"""Time how the next token is drawn in a batch of rows, beside one row after the other on the host.

    PYTHONPATH=src python bench/gpu/sampled.py          a few seconds

Logits of a vocabulary of 151,936 tokens in bfloat16, temperature 1, all tokens or those of a
nucleus (top_p 0.9). The peer is the plain way: each row's logits to the host, softmax, sort,
multinomial. Both draw from a stream of the row's own. Prints milliseconds a row and step, the
median of ten steps, and writes $OUT/sampled.json, if OUT is set. On a CPU it runs the same code.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ragged import Numbers

from heldout._live.decoding import Prompt
from heldout._live.decoding.choosing import choose_tokens
from heldout._live.decoding.turn import Turn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, STEPS = 151_936, 10


def one_by_one(logits: Any, turns: list[Turn], streams: list[torch.Generator]) -> list[int]:
    tokens = []
    for row, (turn, stream) in enumerate(zip(turns, streams, strict=True)):
        weights = torch.softmax(logits[row].float().cpu() / turn.prompt.temperature, dim=-1)
        top_p = turn.prompt.top_p
        if top_p is not None:
            ordered, order = weights.sort(descending=True)
            weights[order[ordered.cumsum(-1) - ordered >= top_p]] = 0.0
        tokens.append(int(torch.multinomial(weights, 1, generator=stream)))
    return tokens


def milliseconds(choose: Callable[[], object]) -> float:
    seconds = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        choose()  # ends with a transfer to the host, so the device has nothing left to do
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds[1:])


def main() -> None:
    torch.manual_seed(0)
    found = []
    print("rows  top_p   one by one   together   (ms a row and step)")
    for rows in (1, 8, 32, 64):
        logits = 3 * torch.randn(rows, VOCABULARY, device=DEVICE, dtype=torch.bfloat16)
        for top_p in (None, 0.9):
            prompt = Prompt((1,), 1, temperature=1.0, top_p=top_p, seed=0)
            turns = [Turn(row, prompt, Numbers(), frozenset()) for row in range(rows)]
            streams = [torch.Generator().manual_seed(row) for row in range(rows)]
            singly = milliseconds(partial(one_by_one, logits, turns, streams)) / rows
            together = milliseconds(partial(choose_tokens, logits, turns)) / rows
            found.append({"rows": rows, "top_p": top_p, "singly": singly, "together": together})
            print(f"{rows:4}  {top_p or '':5}   {singly:10.2f}   {together:8.3f}")
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "sampled.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
