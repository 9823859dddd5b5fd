"""GRPO with a tool in the loop: a small model learns to use a calculator instead of guessing.

The model is made here: ninety thousand weights, a vocabulary of fifty words, and just enough
imitation that it calls the calculator every other time. TRL's trainer does the rest. Each
question is rolled out with a calculator of its own, scored by the function that would score it
in an eval, and trained on, without the calculator's words. Held-out questions are answered
greedily before and after.

    pip install 'heldout[trl]'
    python examples/train_calculator_trl.py
"""

import os
import random
import tempfile
from itertools import product
from typing import Any

import torch

from heldout import Metric, Sample, Score, Trajectory
from heldout.environments import Calculator
from heldout.integrations.trl import build_rollout_func, reward_from_rollout, to_dataset

NUMBERS = range(5)
TEMPLATE = (
    "{% if tools %}<|im_start|> system tools : calculate <|im_end|> {% endif %}"
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


# --- The eval: samples, environment, score ------------------------------------------------------


def make_samples() -> tuple[list[Sample], list[Sample]]:
    """Twenty sums to train on, and five held out."""
    samples = [
        Sample(f"{a}+{b}", {"question": f"what is {a} plus {b} ?", "numbers": [a, b]}, a + b)
        for a, b in product(NUMBERS, NUMBERS)
    ]
    random.Random(0).shuffle(samples)
    return samples[:20], samples[20:]


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


# --- A model that calls a calculator about every other time -------------------------------------


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [
        *("<pad>", "<|im_start|>", "<|im_end|>", "<unk>", "system", "user", "assistant", "tool"),
        *("tools", ":", "calculate", "what", "is", "plus", "?", "<tool_call>", "</tool_call>"),
        *('{"name":', '"calculate",', '"arguments":', '{"expression":', "+"),
        *map(str, range(10)),
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


def make_model(tokenizer: Any, samples: list[Sample], imitation_steps: int = 120) -> Any:
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
        guessed = ("assistant", str(guess.randrange(9)))
        by_tool.append(conversation_ids(tokenizer, [asked, called, *answered]))
        by_guess.append(conversation_ids(tokenizer, [asked, guessed]))
    batches = [torch.tensor(by_tool), torch.tensor(by_guess)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(imitation_steps):
        optimizer.zero_grad()
        for ids in batches:
            model(input_ids=ids, labels=ids).loss.backward()
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


def main(steps: int = 20, output_dir: str | None = None) -> dict[str, Any]:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental
    from trl import GRPOConfig, GRPOTrainer

    train, held_out = make_samples()
    tokenizer = make_tokenizer()
    inner = build_rollout_func(
        [*train, *held_out], score_fn, environment_factory=make_environment, max_turns=3
    )
    last: dict[str, Any] = {}

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        last.update(inner(prompts, trainer))
        return dict(last)

    trainer = GRPOTrainer(
        make_model(tokenizer, train),
        reward_funcs=reward_from_rollout,
        args=GRPOConfig(
            output_dir=output_dir or tempfile.mkdtemp(prefix="heldout-"),
            per_device_train_batch_size=32,
            num_generations=8,
            num_generations_eval=1,  # greedy answers do not differ
            max_completion_length=16,  # of one turn
            max_steps=steps,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            logging_steps=max(1, steps // 5),
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=to_dataset(train),
        eval_dataset=to_dataset(held_out),
        processing_class=tokenizer,
        rollout_func=rollout_func,
    )
    # It prints every number it logs; the ones of interest are printed below.
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    before = trainer.evaluate()
    trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            print(
                f"step {row['step']:3}  reward {row['reward']:.3f}  "
                f"used_tool {row['metric_used_tool/batch_mean']:.3f}  "
                f"errors {row['rollouts/n_errors']:g}"
            )
    print("\na rollout of the last step; what is in brackets was not trained on:")
    print(show_masked(tokenizer, last), end="\n\n")
    after = trainer.evaluate()
    for name, row in (("before", before), ("after", after)):
        print(f"held out, {name:6}: reward {row['eval_reward']:.3f}")
    return {"before": before, "after": after, "last": last, "history": trainer.state.log_history}


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small is slower in several
    main()
