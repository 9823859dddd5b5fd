"""GRPO on a task family of reasoning-gym, with the held-out curve of SmolLM2 while it trains.

`from_reasoning_gym` makes two sets of questions that share none, one to train on and one held out.
TRL trains on the first. Every few steps the second is answered greedily, on the weights as they
are at that moment; training does not notice. The curve and its verdict are printed at the end, and
`heldout curve watch grpo-reasoning-gym` shows it while it grows.

    pip install -e '.[demo,trl,reasoning-gym]'    # in a clone
    python examples/grpo_reasoning_gym.py    # some minutes on a CPU; for more, see --help
    heldout sql grpo-reasoning-gym@last "select answer, count(*) from results group by answer"

Two runs of 12 and 8 steps took 6.5 and 5.2 minutes of CPU time, and neither learned to count. One
went from 0.035 (0.011 … 0.111) to 0.734 (0.615 … 0.827), `improving`: it answers 1 to every
question, the commonest answer; what that scores is printed above the curve. The other went from
0.047 (0.014 … 0.146) to 0.193 (0.164 … 0.225), `inconclusive`: it writes 1111, which contains the
right digit and so gets a part of reasoning-gym's score, while `exact` beside it fell to 0. The last
command above shows what the model says: look at it before you believe a curve.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from heldout import EvalDefinition, Message, Sample
from heldout.adapters import from_reasoning_gym
from heldout.cli import run_cli
from heldout.integrations.transformers import HeldoutCallback
from heldout.integrations.trl import build_rollout_func, reward_from_rollout, to_dataset
from heldout.training import PeriodicEval, live_model

MAX_TOKENS = 4  # a number and the end of the turn


# --- The task: a set to train on, and one that is held out ---------------------------------------


def make_sets(train_size: int, held_out_size: int) -> tuple[EvalDefinition, EvalDefinition]:
    """Return the set to train on and the held-out set. They share no question."""
    # Without a system prompt the whole reply is scored: a model this small writes no <answer> tags.
    family = {"min_words": 1, "max_words": 2, "system_prompt": None}
    held_out = from_reasoning_gym("letter_counting", size=held_out_size, seed=0, **family)
    train = from_reasoning_gym(
        "letter_counting", size=train_size, seed=1, without=held_out, **family
    )
    return replace(train, prepare_messages=ask), replace(held_out, prepare_messages=ask)


def ask(sample: Sample) -> list[Message]:
    """Ask with an example before the question, so that the model sometimes writes a bare number."""
    return [
        Message("system", ""),
        Message("user", 'How often does "a" appear in "panama"?'),
        Message("assistant", "3"),
        Message("user", sample.input["question"]),
    ]


# --- Training -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> PeriodicEval:
    options = parse(arguments)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    folder = options.model
    if folder is None:
        from heldout.models import weights_folder

        folder = weights_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(False)  # on a CPU, most of the time would go into the backward pass
    model.model.layers[-options.layers :].requires_grad_(True)
    train, held_out = make_sets(options.train_samples, options.samples)
    evals = PeriodicEval(
        held_out,
        live_model(tokenizer, held_out, max_new=MAX_TOKENS),
        every_steps=options.every,
        pass_threshold=1.0,
        at_start=True,
        run_dir=options.out,
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=reward_from_rollout,  # reasoning-gym's score
        rollout_func=build_rollout_func(train),
        args=GRPOConfig(
            output_dir=str(Path(options.out) / "trainer"),
            seed=options.seed,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            num_generations=8,
            max_completion_length=MAX_TOKENS,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,  # the model is small
            bf16=False,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=to_dataset(train),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)  # it prints every number that is logged
    HeldoutCallback(evals).attach(trainer)  # refuses questions that are in both sets
    trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            print(f"step {row['step']:3}  reward in training {row['reward']:.3f}")
    answer, count = Counter(sample.ground_truth for sample in held_out.samples).most_common(1)[0]
    print(f"\nalways answering {answer} would score {count / options.samples:.3f}\n")
    run_cli(["curve", "show", options.out])
    return evals


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps")
    parser.add_argument("--every", type=int, default=2, help="steps from one eval to the next")
    parser.add_argument("--samples", type=int, default=48, help="held-out samples")
    parser.add_argument("--train-samples", type=int, default=300, help="samples to train on")
    parser.add_argument("--batch", type=int, default=16, help="completions per step, 8 per sample")
    parser.add_argument("--layers", type=int, default=6, help="layers that are trained, the last")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0, help="seed of training")
    parser.add_argument(
        "--out", default="outputs/evals/grpo-reasoning-gym", help="where the curve goes"
    )
    parser.add_argument("--model", help="a folder with another model")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
