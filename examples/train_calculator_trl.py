"""GRPO with a tool in the loop: a small model learns to use a calculator instead of guessing.

The model is made here: ninety thousand weights, a vocabulary of a hundred words, and just enough
imitation that it calls the calculator one time in three. TRL's trainer does the rest. Each
question is rolled out with a calculator of its own, scored by the function that would score it
in an eval, and trained on, without the calculator's words. A hundred sums that are not trained on
are answered greedily before, during and after, and end up as a held-out curve.

    pip install -e '.[trl]' simpleeval    # in a clone
    python examples/train_calculator_trl.py    # about a minute on a CPU
"""

import argparse
import os
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from calculator import Calculator
from heldout import Metric, Sample, Score, Trajectory
from heldout.cli import run_cli
from heldout.integrations.transformers import HeldoutCallback
from heldout.integrations.trl import (
    build_rollout_func,
    in_rollout_phase,
    reward_from_rollout,
    to_dataset,
)
from heldout.training import PeriodicEval

NUMBERS = range(20)
HELD_OUT = 100
TEMPLATE = (
    "{% if tools %}<|im_start|> system tools : calculate <|im_end|> {% endif %}"
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


# --- The eval: samples, environment, score ------------------------------------------------------


def make_samples() -> tuple[list[Sample], list[Sample]]:
    """Three hundred sums to train on, and a hundred held out."""
    samples = [
        Sample(f"{a}+{b}", {"question": f"what is {a} plus {b} ?", "numbers": [a, b]}, a + b)
        for a, b in product(NUMBERS, NUMBERS)
    ]
    random.Random(0).shuffle(samples)
    return samples[HELD_OUT:], samples[:HELD_OUT]


def make_environment(sample: Sample) -> Calculator:
    return Calculator()


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    answer = trajectory.answer
    asked = any(message.role == "tool" for message in trajectory.messages)
    return Score(
        (
            Metric("correct", answer == str(sample.ground_truth), weight=1.0),
            Metric("used_tool", asked),  # tracked, not rewarded
        )
    )


# --- A model that calls a calculator one time in three -----------------------------------------


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [
        *("<pad>", "<|im_start|>", "<|im_end|>", "<unk>", "system", "user", "assistant", "tool"),
        *("tools", ":", "calculate", "what", "is", "plus", "?", "<tool_call>", "</tool_call>"),
        *('{"name":', '"calculate",', '"arguments":', '{"expression":', "+"),
        *map(str, range(2 * len(NUMBERS))),
        *(f'"{n}' for n in NUMBERS),
        *(f'{n}"}}}}' for n in NUMBERS),
    ]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    )


def make_model(tokenizer: Any, samples: list[Sample], imitation_steps: int = 300) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    by_tool, by_guess = [], []
    guess = random.Random(1)
    for sample in samples:
        a, b = sample.input["numbers"]
        call = f'{{"name": "calculate", "arguments": {{"expression": "{a} + {b}"}}}}'
        asked = ("user", sample.input["question"])
        called = ("assistant", f"<tool_call> {call} </tool_call>")
        answered = [("tool", str(a + b)), ("assistant", str(a + b))]
        guessed = ("assistant", str(guess.randrange(2 * len(NUMBERS))))
        by_tool.append(conversation_ids(tokenizer, [asked, called, *answered]))
        by_guess.append(conversation_ids(tokenizer, [asked, guessed]))
    batches = [(torch.tensor(by_tool), 1.0), (torch.tensor(by_guess), 2.0)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(imitation_steps):
        chosen = torch.randperm(len(samples))[:64]
        optimizer.zero_grad()
        for ids, weight in batches:
            loss = model(input_ids=ids[chosen], labels=ids[chosen]).loss
            (weight * loss).backward()
        optimizer.step()
    return model


def conversation_ids(tokenizer: Any, said: list[tuple[str, str]]) -> list[int]:
    messages = [{"role": role, "content": text} for role, text in said]
    ids: list[int] = tokenizer.apply_chat_template(messages, tools=[{}], return_dict=False)
    return ids


# --- Training -----------------------------------------------------------------------------------


def show_masked(tokenizer: Any, rollouts: dict[str, Any]) -> str:
    """The first rollout that used the calculator; what is not trained on is in brackets."""
    for ids, mask in zip(rollouts["completion_ids"], rollouts["env_mask"], strict=True):
        if 0 in mask and 1 in mask:
            words = tokenizer.convert_ids_to_tokens(ids)
            pairs = zip(words, mask, strict=True)
            text = " ".join(word if mine else f"[{word}]" for word, mine in pairs)
            return text.replace("] [", " ")
    return "no rollout used the calculator"


def main(arguments: Sequence[str] | None = None) -> PeriodicEval:
    options = parse(arguments)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental
    from trl import GRPOConfig, GRPOTrainer

    train, held_out = make_samples()
    tokenizer = make_tokenizer()
    evals = PeriodicEval(
        held_out,
        in_rollout_phase(score_fn, environment_factory=make_environment, max_turns=3),
        every_steps=options.every,
        at_start=True,
        run_dir=options.out,
    )
    roll_out = build_rollout_func(
        train, score_fn, environment_factory=make_environment, max_turns=3, evals=[evals]
    )
    last: dict[str, Any] = {}

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        last.update(roll_out(prompts, trainer))
        return dict(last)

    trainer = GRPOTrainer(
        make_model(tokenizer, train),
        reward_funcs=reward_from_rollout,
        args=GRPOConfig(
            output_dir=str(Path(options.out) / "trainer"),
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=16,  # of one turn
            max_steps=options.steps,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,  # the model is small
            logging_steps=options.every,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=to_dataset(train),
        processing_class=tokenizer,
        rollout_func=rollout_func,
    )
    # It prints every number it logs; the ones of interest are printed below.
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            print(
                f"step {row['step']:3}  reward in training {row['reward']:.3f}  "
                f"used_tool {row['metric_used_tool/batch_mean']:.3f}  "
                f"errors {row['rollouts/n_errors']:g}"
            )
    print("\na rollout of the last step; what is in brackets was not trained on:")
    print(show_masked(tokenizer, last), end="\n\n")
    run_cli(["curve", "show", options.out])
    return evals


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24, help="optimizer steps")
    parser.add_argument("--every", type=int, default=4, help="steps from one eval to the next")
    parser.add_argument("--out", default="outputs/evals/calculator", help="where the curve goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small is slower in several
    main()
