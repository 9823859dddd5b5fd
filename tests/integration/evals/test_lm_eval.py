"""Tasks of lm-eval: their prompts, filters and metrics, and the numbers of its own HFLM."""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heldout
from heldout import EvalReport
from heldout.adapters.lm_eval import from_lm_eval, task_downloads, task_names
from heldout.adapters.lm_eval.names import find_task_files, installed_folder
from heldout.adapters.tasks import list_tasks, load_task
from heldout.errors import InvalidInput
from heldout.models.local import LocalEndpoint
from tests.test_docs import blocks
from tests.tiny_model import tiny_model
from tests.tolerances import near

pytestmark = [
    pytest.mark.integration,
    # lm-eval's `evaluate` and `datasets` leave files open, and say what is deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODEL, TOKENIZER = tiny_model()
# In float64: its weights are so large that rounding alone moves a float32 sum by 2e-4.
MODEL.double()
# lm-eval puts nothing between a template and a choice, and these words need a space.
TOKENIZER.chat_template = TOKENIZER.chat_template.replace("assistant{", 'assistant{{ "\\n" }}{')

Make = Callable[..., dict[str, Any]]


def means(*names: str) -> list[dict[str, Any]]:
    return [{"metric": n, "aggregation": "mean", "higher_is_better": True} for n in names]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes rows of words, and returns a task of them."""
    draw = random.Random(0)

    def words(most: int) -> str:
        return " ".join(f"w{draw.randrange(56)}" for _ in range(draw.randint(1, most)))

    def make_task(kind: str, *, documents: int = 12, **more: Any) -> dict[str, Any]:
        for split in ("test", "train"):
            rows = [
                {
                    "question": words(6),
                    "choices": [words(3) for _ in range(4)],
                    "label": draw.randrange(4),
                    "answer": words(2),
                }
                for _ in range(documents)
            ]
            text = "\n".join(map(json.dumps, rows))
            (tmp_path / f"{split}.jsonl").write_text(text, encoding="utf-8")
        files = {split: str(tmp_path / f"{split}.jsonl") for split in ("test", "train")}
        return {
            "task": "words",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
            "test_split": "test",
            "training_split": "train",
            "doc_to_text": "{{question}}",
            **KINDS[kind],
            **more,
        }

    return make_task


KINDS: dict[str, dict[str, Any]] = {
    "multiple_choice": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
        "metric_list": means("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"),
    },
    "multiple_input": {
        "output_type": "multiple_choice",
        "doc_to_text": "label",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": means("acc"),
    },
    "loglikelihood": {
        "output_type": "loglikelihood",
        "doc_to_target": " {{answer}}",
        "metric_list": [
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            *means("acc"),
        ],
    },
    "generate_until": {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["w1", "w2"], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{**means("exact_match")[0], "ignore_case": True}],
        "filter_list": [
            {
                "name": "first",
                "filter": [
                    {"function": "regex", "regex_pattern": r"(w\d+)"},
                    {"function": "take_first"},
                ],
            },
            {"name": "last", "filter": [
                {"function": "regex", "regex_pattern": r"(w\d+)", "group_select": -1},
                {"function": "take_first"},
            ]},
        ],
    },
}  # fmt: skip


def run(definition: Any, tmp_path: Path, **more: Any) -> EvalReport:
    endpoint = LocalEndpoint(MODEL, TOKENIZER)
    return heldout.run(definition, endpoint=endpoint, output_dir=str(tmp_path / "runs"), **more)


def run_theirs(task: dict[str, Any], shots: int, chat: bool) -> dict[str, Any]:
    """What lm-eval itself makes of it, on the same model."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    results = simple_evaluate(
        model=HFLM(pretrained=MODEL, tokenizer=TOKENIZER, batch_size=8, device="cpu"),
        tasks=[copy.deepcopy(task)],
        num_fewshot=shots,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )
    assert results is not None
    return results  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "shots", "chat"),
    [
        ("multiple_choice", 0, False),
        ("multiple_choice", 2, True),
        ("multiple_input", 1, False),
        ("loglikelihood", 2, False),
        ("generate_until", 2, True),
    ],
)
def test_numbers_are_those_of_lm_eval_document_by_document(
    kind: str, shots: int, chat: bool, make: Make, tmp_path: Path
) -> None:
    task = make(kind)
    theirs = run_theirs(task, shots, chat)
    state = random.getstate()
    report = run(from_lm_eval(task, num_fewshot=shots, chat=chat), tmp_path, max_error_rate=0)
    assert random.getstate() == state  # its own runner seeds it
    by_filter: dict[str, dict[int, Any]] = {}
    for sample in theirs["samples"]["words"]:
        by_filter.setdefault(sample["filter"], {})[sample["doc_id"]] = sample
    compared = 0
    for result in report.results:
        for metric in result.score.metrics:
            name, _, used = metric.name.partition(",")
            sample = by_filter[used or "none"][result.sample.metadata["doc_id"]]
            assert metric.value == sample[name], (result.sample, metric, sample)
            compared += 1
        if kind != "generate_until":
            rated = (result.trajectory.outcome or {})["likelihoods"]
            for [(logprob, greedy)], own in zip(sample["resps"], rated, strict=True):
                assert own["logprob"] == near(float(logprob))
                assert str(own["greedy"]) == str(greedy)
    assert compared == sum(len(documents) for documents in by_filter.values()) * {
        "multiple_choice": 5
    }.get(kind, 1)
    for name, value in report.summary.items():
        if name.startswith("metric_") and not name.endswith(("_n", "_stderr", "_low", "_high")):
            metric, _, used = name.removeprefix("metric_").partition(",")
            assert value == pytest.approx(theirs["results"]["words"][f"{metric},{used or 'none'}"])
    [reward] = [m.name for m in report.results[0].score.metrics if m.weight]
    assert reward in ("acc", "exact_match,first")
    assert report.summary["mean"] == report.summary[f"metric_{reward}"]


def test_generation_takes_the_tasks_settings_and_cuts_where_an_endpoint_did_not(
    make: Make, tmp_path: Path
) -> None:
    task = make("generate_until", documents=2)
    definition = from_lm_eval(task, metric="exact_match,last")
    answer = definition.samples[0].ground_truth  # type: ignore[index]

    def says(messages: Any) -> str:
        return f"{answer} w1 w55"

    report = heldout.run(
        definition, endpoint=says, output_dir=str(tmp_path), max_tokens=5, max_error_rate=1
    )
    sampling = report.config["sampling"]
    assert (sampling["max_tokens"], sampling["stop"]) == (5, ["w1", "w2"])  # what is set wins
    first = report.results[0].score
    assert {m.name: m.weight for m in first.metrics} == {
        "exact_match,first": 0.0,
        "exact_match,last": 1.0,
    }
    assert [m.metadata["extracted"] for m in first.metrics][1] == answer.split("w1")[0].split()[-1]
    changed = from_lm_eval(task, generation_kwargs={"max_gen_toks": 3, "until": "."})
    assert changed.sampling is not None
    assert (changed.sampling.max_tokens, changed.sampling.stop) == (3, (".",))
    # Scored again without a model, by another of its metrics.
    import anyio

    again = anyio.run(heldout.rescore, report, from_lm_eval(task, metric="exact_match,first"))
    assert again.summary["mean"] == report.summary["metric_exact_match,first"]


REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("multiple_choice", {"gen_prefix": "w1"}, {}, "gen_prefix begins the model's turn"),
    ("generate_until", {"repeats": 3}, {}, "takes several answers to a document"),
    ("generate_until", {"unsafe_code": True}, {}, "unsafe_code=True lets it"),
    ("generate_until", {"output_type": "loglikelihood_rolling"}, {}, "has no value for one"),
    ("generate_until", {}, {"metric": "f1"}, "no metric 'f1'; it has exact_match,first, exact_m"),
    ("loglikelihood", {}, {"metric": "perplexity"}, "no metric 'perplexity'; it has acc"),
    ("multiple_choice", {"doc_to_target": "{{9 if label == 2 else label}}"}, {},
     "the right answer is 9, which"),
    ("multiple_choice", {"doc_to_target": "answer"}, {}, "which is none of its 4 choices"),
    (
        "multiple_choice",
        {"metric_list": [{"metric": "f1", "aggregation": "f1", "higher_is_better": True}]},
        {},
        "no metric that is a mean over documents: f1",
    ),
    ("multiple_choice", {"fewshot_split": "test", "test_split": None, "validation_split": "test"},
     {"num_fewshot": 6}, "would have a prompt with their own answer in it"),
    ("multiple_choice", {"num_fewshot": 0}, {"num_fewshot": 3}, "sets num_fewshot=0"),
    ("generate_until", {"generation_kwargs": {"num_beams": 4, "until": ["."]}}, {}, "num_beams"),
    ("generate_until", {"dataset_path": "no/such-dataset", "dataset_kwargs": {}}, {},
     "lm-eval could not load words"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config", "arguments", "message"), REFUSALS, ids=[case[3][:30] for case in REFUSALS]
)
def test_what_cannot_be_honoured_is_refused_when_the_eval_is_made(
    kind: str, config: dict[str, Any], arguments: dict[str, Any], message: str, make: Make
) -> None:
    task = {key: value for key, value in make(kind, **config).items() if value is not None}
    with pytest.raises(InvalidInput) as refused:
        from_lm_eval(task, **arguments)
    assert message in str(refused.value)


def test_what_is_left_out_and_where_examples_come_from_is_said(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "heldout"):
        from_lm_eval(make("loglikelihood"))
        from_lm_eval(make("multiple_choice", fewshot_split="test"), num_fewshot=1)
    said = [record.getMessage() for record in caplog.records if record.name == "heldout"]
    assert "left out, as they are of all documents together: perplexity" in said[0]
    assert "of the documents that are asked are few-shot examples in the prompts" in said[1]


def change_rows(task: dict[str, Any], split: str, change: Callable[[list[Any]], Any]) -> None:
    path = Path(task["dataset_kwargs"]["data_files"][split])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("kind", "config", "field", "value", "message"),
    [
        ("multiple_choice", {}, "choices", [], "document 4 has no choices, and lm-eval would leav"),
        ("multiple_choice", {}, "question", None, "document 4 has no value for question"),
        ("multiple_choice", {}, "choices", ["w1", None], "document 4 has no value for choices"),
        ("generate_until", {"doc_to_text": lambda d: f"Q: {d['question']}"}, "question", None,
         "document 4 has no value for question"),
        ("generate_until", {}, "answer", None, "document 4 has no value for answer"),
        ("loglikelihood", {}, "question", None, "document 4 has no value for question"),
    ],
)  # fmt: skip
def test_a_document_that_lm_eval_leaves_out_or_asks_as_none_is_refused_by_number(
    kind: str, config: dict[str, Any], field: str, value: Any, message: str, make: Make
) -> None:
    task = make(kind, **config)
    change_rows(task, "test", lambda rows: rows[4].update({field: value}))
    with pytest.raises(InvalidInput) as refused:
        from_lm_eval(task)
    assert message in str(refused.value)


def test_a_field_that_a_template_need_not_have_may_be_missing(make: Make) -> None:
    text = "{% if label is none %}None of these? {% endif %}{{question}}"
    task = make("generate_until", doc_to_text=text)
    change_rows(task, "test", lambda rows: rows[4].update(label=None))
    prompts = [sample.input["prompt"] for sample in from_lm_eval(task).samples]
    assert [prompt.startswith("None") for prompt in prompts] == [n == 4 for n in range(12)]


def test_a_file_of_examples_that_holds_the_documents_asked_is_found_by_content(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    task = make("generate_until")
    files = task["dataset_kwargs"]["data_files"]
    asked = [json.loads(line) for line in Path(files["test"]).read_text().splitlines()]

    def hold_them(rows: list[Any]) -> None:
        rows[:] = [{**row, "source": f"page {n}"} for n, row in enumerate(asked)]

    change_rows(task, "train", hold_them)
    change_rows(task, "test", lambda rows: [row.update(source="exam") for row in rows])
    with pytest.raises(InvalidInput, match="of 12 would have a prompt with their own answer"):
        from_lm_eval(task, num_fewshot=6)
    assert len(from_lm_eval(task).samples) == 12
    other = [{**row, "question": f"w1 {n}"} for n, row in enumerate(asked[1:])]
    change_rows(task, "train", lambda rows: rows.__setitem__(slice(1, None), other))
    with caplog.at_level(logging.WARNING, "heldout"):
        from_lm_eval(task, num_fewshot=2, fewshot_seed=1)
    assert "1 of the documents that are asked are few-shot examples in the prompts" in caplog.text


def test_samples_have_ids_by_content_and_the_identity_of_the_task_is_stable(make: Make) -> None:
    task = make("multiple_choice")
    path = Path(task["dataset_kwargs"]["data_files"]["test"])
    path.write_text(path.read_text() + "\n" + path.read_text().splitlines()[0])
    first, second = from_lm_eval(task), from_lm_eval(task)
    ids = [sample.id for sample in first.samples]
    assert len({*ids}) == len(ids) == 13
    assert ids[-1] == f"{ids[0]}-2"
    assert first.score_fn.identity() == second.score_fn.identity()  # type: ignore[attr-defined]
    limited = from_lm_eval(task, limit=3, metric="acc_norm")
    assert [sample.id for sample in limited.samples] == ids[:3]
    assert limited.score_fn.identity() != first.score_fn.identity()  # type: ignore[attr-defined]


def test_own_yaml_files_run_by_name_and_groups_as_one_eval(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import yaml

    from heldout.cli.main import run_cli

    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("one", "two"):
        config = {**make("multiple_choice", documents=3), "task": f"own_{name}"}
        files = {k: str(Path(v).rename(folder / f"{name}-{k}.jsonl"))
                 for k, v in config["dataset_kwargs"]["data_files"].items()}  # fmt: skip
        config["dataset_kwargs"] = {"data_files": files}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    group = {"group": "own_all", "task": ["own_one", "own_two"]}
    (folder / "all.yaml").write_text(yaml.safe_dump(group))
    definition = load_task("lm-eval:own_all", include_path=str(folder))
    report = run(definition, tmp_path)
    tasks = [result.sample.metadata["task"] for result in report.results]
    assert tasks == ["own_one"] * 3 + ["own_two"] * 3
    assert task_names(folder)["own_all"] is None

    # The command line, with the model in a folder.
    from tests.tiny_model import save_tiny_model

    model = save_tiny_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    include = ("-T", f"include_path={folder}")
    assert run_cli(["run", "lm-eval:own_one", *include, "--model", f"hf:{model}"]) == 0
    assert "acc_norm" in capfd.readouterr().out
    assert run_cli(["run", "lm-eval:no_such", *include, "--model", f"hf:{model}"]) != 0
    assert "lm-eval has no task 'no_such'" in capfd.readouterr().err


def test_the_names_are_those_of_lm_eval_without_its_index() -> None:
    from lm_eval.tasks import TaskManager

    files = find_task_files()
    assert sum(not file.is_group for file in files.values()) > 13_000
    folders = [installed_folder() / name for name in ("darija_bench", "aradice", "gsm8k")]
    theirs = TaskManager(include_defaults=False, include_path=list(folders))
    ours = {n: f for n, f in files.items() if any(p in f.path.parents for p in folders)}
    assert {n for n, f in ours.items() if not f.is_group} == {*theirs.all_subtasks}
    assert {n for n, f in ours.items() if f.is_group} == {*theirs.all_groups}
    listed = {task.name: task.refused for task in list_tasks("lm-eval")}
    assert listed["lm-eval:arc_easy"] is None
    assert listed["lm-eval:mmlu"] is None
    assert "has no value for one" in (listed["lm-eval:wikitext"] or "")
    assert "runs code" in (listed["lm-eval:humaneval"] or "")


def test_a_forgetting_curve_beside_the_reward_does_not_change_training(
    make: Make, tmp_path: Path
) -> None:
    import torch

    from heldout.testing import assert_neutral
    from heldout.training import PeriodicEval, live_model, read_points

    kept = from_lm_eval(make("multiple_choice"), num_fewshot=1)
    asked = from_lm_eval(make("generate_until", documents=4))
    runs = iter(range(9))

    def train(evaluating: bool) -> Any:
        model = copy.deepcopy(MODEL).train()
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        evals = []
        if evaluating:
            folder = tmp_path / f"run{next(runs)}"
            for name, definition in (("reward", asked), ("kept", kept)):
                builder = live_model(TOKENIZER, definition, rows=8)
                curve = PeriodicEval(definition, builder, run_dir=folder / name, every_steps=2)
                evals.append(curve)
        for step in range(1, 5):
            ids = torch.randint(8, 60, (2, 9))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for curve in evals:
                curve.maybe_run(step, model)
        return model

    assert_neutral(train)
    for name, count in (("reward", 4), ("kept", 12)):
        points = read_points(tmp_path / "run0" / name / "curve.jsonl")
        assert [(p.step, p.summary["n"], p.skipped) for p in points] == [
            (2, count, None),
            (4, count, None),
        ]


def test_smollm2_is_rated_as_lm_eval_rates_it(make: Make, tmp_path: Path) -> None:
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from heldout.models import demo

    folder = demo.weights_folder()
    rows = [
        {"question": "The capital of France is", "choices": ["Paris", "Lyon", "a small village"]},
        {"question": "Two plus two is ", "choices": ["four", "five hundred", "green, I think"]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({**row, "label": 0}) for row in rows))
    task = {**make("multiple_choice"), "dataset_kwargs": {"data_files": {"test": str(path)}}}
    del task["training_split"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=4)
    for chat in (False, True):
        definition = from_lm_eval(task, chat=chat)
        endpoint = LocalEndpoint(model, tokenizer)
        report = heldout.run(definition, endpoint=endpoint, output_dir=str(tmp_path / "runs"))
        for result in report.results:
            rated = (result.trajectory.outcome or {})["likelihoods"]
            prompts = [
                lm.apply_chat_template(prompt) if isinstance(prompt, list) else prompt
                for prompt in result.sample.input["prompts"]
            ]
            pairs = zip(prompts, result.sample.input["continuations"], strict=True)
            requests = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
            theirs = lm.loglikelihood(requests, disable_tqdm=True)
            assert [(near(r["logprob"]), r["greedy"]) for r in rated] == theirs
            assert chat or result.score["acc"] == 1


def test_the_code_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = blocks("docs/lm-eval.md")
    assert {kind for kind, _ in page} == {"python", "sh"}
    namespace: dict[str, Any] = {"__name__": "__docs__", "model": MODEL, "tokenizer": TOKENIZER}
    for kind, code in page:
        if kind == "python":
            exec(compile(code, "docs/lm-eval.md", "exec"), namespace)


def test_tasks_say_what_they_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    downloads = task_downloads()
    hub = "https://huggingface.co/datasets"
    assert downloads["hellaswag"] == (f"{hub}/Rowan/hellaswag",)
    assert downloads["mmlu"] == ("the datasets of its tasks",)
    assert downloads["arithmetic_1dc"][0].startswith("hf://datasets/EleutherAI/arithmetic/")
    assert downloads["boolq"] == (f"{hub}/aps/super_glue",)
    (tmp_path / "hub" / "datasets--Rowan--hellaswag").mkdir(parents=True)
    assert task_downloads()["hellaswag"] == ()
