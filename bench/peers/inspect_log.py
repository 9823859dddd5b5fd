"""Write an inspect-ai log of N scored samples, for `inspect view` to show.

Run with the Python of an environment made from requirements-inspect.txt:

    python inspect_log.py FOLDER 10000
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score


def sample(i: int) -> EvalSample:
    question, target = f"What is {i} + 25?", str(i + 25)
    answer = target if i % 4 != 3 else "unknown"
    return EvalSample(
        id=f"q{i:06d}",
        epoch=1,
        input=question,
        target=target,
        messages=[ChatMessageUser(content=question), ChatMessageAssistant(content=answer)],
        output=ModelOutput.from_content("function", answer),
        scores={"match": Score(value="C" if answer == target else "I", answer=answer)},
        metadata={"kind": f"kind {i % 5}"},
    )


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    spec = EvalSpec(
        created=datetime.now(UTC).isoformat(),
        task="sums",
        dataset=EvalDataset(name="sums", samples=count),
        model="function",
        config=EvalConfig(),
    )
    samples = [sample(i) for i in range(count)]
    log = EvalLog(status="success", eval=spec, samples=samples)
    write_eval_log(log, str(folder / f"sums-{count}.eval"), format="eval")


if __name__ == "__main__":
    main()
