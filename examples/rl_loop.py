"""A whole RL loop to copy from: rollout, score, advantage, update, and held-out evals on the way.

A small transformer learns to sort four digits ("7 1 9 1": "1 1 7 9") from rewards alone, by policy
gradient with group-relative advantages (as in GRPO). Every hundred steps it is asked, greedily, to
sort digits that it is not trained on. All that `--async` changes is that training does not wait
for those evals: the loop is the same, and so are the weights it ends in, to the last bit.

    python examples/rl_loop.py                                  # under a minute on two cores
    python examples/rl_loop.py --resume                         # after a Ctrl-C or a kill
    python examples/rl_loop.py --async --out outputs/evals/rl-loop-async
    heldout curve watch outputs/evals/rl-loop                   # meanwhile, in another terminal
    heldout curve stop outputs/evals/rl-loop                    # … and --resume goes on from there
"""

import argparse
import random
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations_with_replacement
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Adam

from heldout import Message, Metric, Sample, Score, Trajectory, training
from heldout.cli import run_cli
from heldout.rollouts import DataBuffer
from heldout.training import fingerprint, pending_evals

DIGITS = 4
ASK = 10  # the token after the digits that asks for the answer
PROMPTS, GROUP = 16, 8  # a step is so many prompts, each answered so many times


# --- The task, and the policy -------------------------------------------------------------------


def make_samples() -> tuple[list[Sample], list[Sample]]:
    """To train on, and held out: other digits, not only the same ones in another order."""
    draw = random.Random(0)
    samples = []
    for digits in combinations_with_replacement("0123456789", DIGITS):
        shuffled = " ".join(draw.sample(digits, DIGITS))
        samples.append(Sample(shuffled, {"question": shuffled}, " ".join(digits)))
    draw.shuffle(samples)
    return samples[128:], samples[:128]


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    """The reward in training; and, the very same function, what the held-out curve shows."""
    said, truth = trajectory.answer.split(), sample.ground_truth.split()
    right = [a == b for a, b in zip(said, truth, strict=True)]
    # Weight 0 is tracked, not rewarded: whether all is sorted is too rare to begin with.
    return Score((Metric("digits", sum(right) / DIGITS, weight=1.0), Metric("sorted", all(right))))


class Policy(nn.Module):
    """A small transformer: tokens in, logits of the next digit out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(11, width), nn.Embedding(2 * DIGITS, width)
        self.block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        later = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.block(self.token(ids) + self.place.weight[:length], later))


@torch.no_grad()
def generate(policy: Policy, prompts: Tensor, *, greedy: bool) -> Tensor:
    ids = prompts
    for _ in range(DIGITS):
        logits = policy(ids)[:, -1]
        drawn = logits.argmax(-1) if greedy else logits.softmax(-1).multinomial(1)[:, 0]
        ids = torch.cat([ids, drawn[:, None]], 1)
    return ids[:, -DIGITS:]


def encode(question: str) -> list[int]:
    return [*map(int, question.split()), ASK]


def decode(answers: Tensor) -> list[str]:
    return [" ".join(map(str, row)) for row in answers.tolist()]


# --- The loop -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> training.PeriodicEval:
    options = parse(arguments)
    torch.manual_seed(0)
    policy = Policy()
    optimizer = Adam(policy.parameters(), lr=3e-3)
    train, held_out = make_samples()
    buffer = DataBuffer(train, seed=0, held_out=held_out)  # refuses what is in both

    def answer(policy: Policy, prompts: list[list[int]], limit: int) -> list[str]:
        return decode(generate(policy, torch.tensor(prompts), greedy=True))

    evals = training.PeriodicEval(
        held_out,
        training.from_functions(lambda messages: encode(messages[-1].text), answer, score_fn),
        every_steps=options.every,
        model_getter=lambda: policy,
        run_dir=options.out,
        resume=True,
        at_start=True,
    )
    step, stop = 0, None
    if saved := sorted(options.out.glob("checkpoint-*/training.pt")):
        for pending in pending_evals(options.out):  # a kill came before their result
            if pending.saved_at:
                policy.load_state_dict(torch.load(pending.saved_at, weights_only=True)["policy"])
                evals.finish(pending, policy)
        state = torch.load(saved[-1], weights_only=True)
        step = state["step"]
        policy.load_state_dict(state["policy"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        buffer = DataBuffer.load(saved[-1].with_name("buffer.json"), train, held_out=held_out)
    place = saved[-1] if saved else save(options.out, step, policy, optimizer, buffer)

    with ExitStack() as stack:
        if options.run_async:  # nothing below knows of it
            stack.enter_context(training.AsyncEvalDispatcher(when_full="wait"))

        evals.maybe_run(step, saved_at=place)  # step 0, or what a killed run did not get to
        while step < options.steps and not stop:
            step += 1
            # Rollout: every prompt a few times, sampled.
            samples = [sample for sample in buffer.get_prompts(PROMPTS) for _ in range(GROUP)]
            prompts = torch.tensor([encode(sample.input["question"]) for sample in samples])
            answers = generate(policy, prompts, greedy=False)

            # Score.
            trajectories = [Trajectory((Message("assistant", text),)) for text in decode(answers)]
            scores = map(score_fn, trajectories, samples)
            rewards = torch.tensor([score.reward for score in scores])

            # Advantage: what is good is what beats the other answers to the same prompt.
            groups = rewards.view(PROMPTS, GROUP)
            advantages = (groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-6)

            # Update. The rollouts are of these very weights, so there is no ratio to clip.
            logits = policy(torch.cat([prompts, answers[:, :-1]], 1))[:, -DIGITS:]
            chosen = logits.log_softmax(-1).gather(-1, answers[:, :, None])[:, :, 0]
            loss = -(advantages.view(-1, 1) * chosen).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            stop, place = evals.stop_requested, None  # somebody says `heldout curve stop`
            if step % options.save_every == 0 or stop:
                print(f"step {step:4}  epoch {buffer.epoch}  training reward {rewards.mean():.3f}")
                place = save(options.out, step, policy, optimizer, buffer)
            evals.maybe_run(step, saved_at=place)  # if it is due
        evals.run_final(step)  # waits for evals that are still under way

    if options.every:
        run_cli(["show", str(options.out)])
    print(f"weights {fingerprint(policy)}")
    return evals


def save(out: Path, step: int, policy: Policy, optimizer: Adam, buffer: DataBuffer) -> Path:
    """Under its name only once all of it is written: weights and data belong together."""
    unfinished = out / "unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"step": step, "random": torch.get_rng_state()}
    torch.save(state, unfinished / "training.pt")
    buffer.save(unfinished / "buffer.json")
    return unfinished.rename(out / f"checkpoint-{step:06}") / "training.pt"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps")
    parser.add_argument("--every", type=int, default=100, help="steps between evals; 0 is none")
    parser.add_argument("--async", action="store_true", dest="run_async", help="evals beside it")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--out", type=Path, default="outputs/evals/rl-loop")
    options = parser.parse_args(arguments)
    if options.out.exists() and not options.resume:
        parser.error(f"{options.out} is there: --resume goes on with it, --out names another")
    return options


if __name__ == "__main__":
    # Matrices this small gain nothing from a second core, and async evals can have it.
    torch.set_num_threads(1)
    main()
