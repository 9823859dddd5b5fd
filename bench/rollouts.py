"""Time training rollouts: how well they share the engine, and what the turn loop itself costs.

The engine is a sleep, whatever the batch, and so are the tools: what is left is the schedule.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import anyio

from common import child, emit, middle, options, say
from heldout import Message, Reply, Sample
from heldout._live.rendering.chat_templates import ChatRenderer
from heldout._live.rendering.segments import Template
from heldout.environments import ToolEnvironment
from heldout.models.demo import weights_folder
from heldout.rollouts.generating import Generated, Transcript, rollout_batch, rollout_one
from heldout.types import ToolCall

TURNS, ROLLOUTS = 6, 64
ENGINE, TOOL = 0.020, 0.010
END, ROLE = 1, 2
CALL = Message("assistant", "", tool_calls=(ToolCall("call00000", "look", "{}"),))
TURN = Generated([5, 6, 7, END], [-0.5] * 4, CALL, "stop")


def render(messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
    """Four tokens a message, one of them its content; the model's own turn is TURN."""
    ids = []
    for message in messages:
        own = message.role == "assistant"
        ids += [ROLE, *TURN.ids] if own else [ROLE, 8, 9 + len(message.text), END]
    return [*ids, ROLE] if add_generation_prompt else ids


class Waits:
    """An environment whose every reply takes its time, without keeping anyone from working."""

    tools = ()

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def opening(self) -> list[Message]:
        return []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        await anyio.sleep(self.seconds)
        return Reply((Message("tool", "ok", tool_call_id="call00000"),))

    def close(self) -> None:
        pass


class Answers(Waits):
    """The same at once, so that only the loop is left."""

    def reply(self, messages: Sequence[Message]) -> Reply:  # type: ignore[override]
        return Reply((Message("tool", "ok", tool_call_id="call00000"),))


def look() -> str:
    """Blocks its thread, as a request or a query would."""
    time.sleep(TOOL)
    return "ok"


def schedule(case: str, count: int) -> dict[str, Any]:
    """Wall time of `count` rollouts, and how many calls the engine got."""
    calls: list[int] = []

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Generated]:
        calls.append(len(prompts))
        time.sleep(ENGINE)
        return [TURN] * len(prompts)

    samples = [Sample(str(i), {"prompt": "look"}) for i in range(count)]
    make = (lambda s: ToolEnvironment([look])) if case == "threads" else (lambda s: Waits(TOOL))
    rollout_batch(samples[:2], make, render, generate, 1, 8)  # imports, first threads
    calls.clear()
    wall = time.perf_counter()
    if case == "one by one":
        done = [rollout_one(s, make(s), render, generate, TURNS, 8) for s in samples]
    else:
        done = rollout_batch(samples, make, render, generate, TURNS, 8)
    wall = time.perf_counter() - wall
    check([len(r.completion_ids) for r in done], [9 * TURNS - 5] * count)
    return {"wall_s": wall, "calls": len(calls)}


def overhead(count: int, turns: int) -> dict[str, Any]:
    """CPU a turn of everything but rendering and generating."""
    elsewhere = 0.0

    def timed_render(messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
        nonlocal elsewhere
        start = time.thread_time()
        ids = render(messages, add_generation_prompt)
        elsewhere += time.thread_time() - start
        return ids

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Generated]:
        return [TURN] * len(prompts)

    samples = [Sample(str(i), {"prompt": "look"}) for i in range(count)]
    rollout_batch(samples[:2], lambda s: Answers(0), timed_render, generate, 1, 8)  # imports
    elsewhere = 0.0
    cpu = time.process_time()
    done = rollout_batch(samples, lambda s: Answers(0), timed_render, generate, turns, 8)
    cpu = time.process_time() - cpu
    check([len(r.completion_ids) for r in done], [9 * turns - 5] * count)
    return {"us_per_turn": 1e6 * (cpu - elsewhere) / (count * turns)}


RENDERING = ("rendering everything", "rendering suffix", "rendering boundary")
SENTENCE = "the tool looked again and found that nothing had changed since it was last asked"


def rendering(mode: str, turns: int) -> dict[str, Any]:
    """Wall time of rendering a conversation, turn by turn, with a real tokenizer and template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights_folder())
    spent: list[float] = []
    if mode == "everything":

        def naive(messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
            chat = [{"role": m.role, "content": m.content} for m in messages]
            ids: list[int] = tokenizer.apply_chat_template(
                chat, add_generation_prompt=add_generation_prompt, return_dict=False
            )
            return ids

        template = Template(naive, decode=ChatRenderer(tokenizer).decode)
    else:
        template = Template(ChatRenderer(tokenizer), segments=mode)  # type: ignore[arg-type]
    transcript = Transcript(template, per_turn_max_tokens=1000)
    messages = [Message("user", " ".join([SENTENCE] * 10))]
    for turn in range(turns):
        start = time.perf_counter()
        transcript.add_messages(messages, ())
        spent.append(time.perf_counter() - start)
        text = f"turn {turn}: " + " ".join([SENTENCE] * 7)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        done = transcript.add_turn(Generated([*ids, tokenizer.eos_token_id], None, text))
        messages += [done.message, Message("user", f"reply {turn}: " + " ".join([SENTENCE] * 7))]
    trace = transcript.trace()
    assert trace is not None
    return {
        "wall_s": sum(spent),
        "half_s": sum(spent[: turns // 2]),
        "tokens": len(trace.prompt_ids) + len(trace.completion_ids),
    }


def check(found: list[int], expected: list[int]) -> None:
    if found != expected:
        sys.exit(f"wrong result: {found[:5]} …, expected {expected[:5]} …")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", help="measure one alone")
    args = parser.parse_args()
    count = 8 if args.quick else ROLLOUTS
    if args.case and args.case.startswith("rendering "):
        print(json.dumps(rendering(args.case.removeprefix("rendering "), 10 if args.quick else 50)))
        return
    if args.case == "overhead":
        print(json.dumps(overhead(count, 20)))
        return
    if args.case:
        print(json.dumps(schedule(args.case, count)))
        return

    rounds: dict[str, list[dict[str, Any]]] = {}
    # The cases take turns: what disturbs the machine for a while disturbs all.
    for turn in range(1 if args.quick else 3):
        once = ["one by one"] if turn == 0 else []
        for case in ("together", "threads", "overhead", *RENDERING, *once):
            say(f"rollouts, {case}")
            more = ["--quick"] if args.quick else []
            line = child(sys.executable, __file__, "--case", case, *more)
            rounds.setdefault(case, []).append(line)

    ideal = TURNS * (ENGINE + TOOL)
    together = middle(rounds["together"], "wall_s")
    singly = middle(rounds["one by one"], "wall_s")
    what = f"{count} rollouts x {TURNS} turns"
    emit(f"wall, {what}, over the ideal {ideal:.2f} s", together / ideal, "x", target=1.3)
    emit("calls of the engine", middle(rounds["together"], "calls"), "calls")
    emit("wall, as a share of one rollout at a time", together / singly, "x", target=1 / 20)
    emit("one rollout at a time, wall", singly, "s", ratio=singly / together)
    blocking = middle(rounds["threads"], "wall_s")
    emit("wall with tools that block (threads), over the ideal", blocking / ideal, "x")
    spent = middle(rounds["overhead"], "us_per_turn")
    emit("CPU a turn of the loop, without rendering", spent, "µs", target=60)
    whole, suffix, boundary = (rounds[case] for case in RENDERING)
    tokens = int(middle(whole, "tokens"))
    full = middle(whole, "wall_s")
    emit(f"rendering a conversation of {tokens:,} tokens, everything anew each turn", full, "s")
    for mode, found, target in (("suffix", suffix, None), ("boundary", boundary, 2.5)):
        took = middle(found, "wall_s")
        emit(f"the same, `{mode}`", took, "s", ratio=took / full)
        growth = took / middle(found, "half_s")
        emit(f"`{mode}`: all turns over the first half of them", growth, "x", target=target)
    emit("everything anew: likewise", full / middle(whole, "half_s"), "x")


if __name__ == "__main__":
    main()
