"""Tasks of lm-eval as heldout evals.

    mmlu = from_lm_eval("mmlu_anatomy", num_fewshot=5)
    heldout.run(mmlu, endpoint="hf:HuggingFaceTB/SmolLM2-135M")

Tasks with answers to generate are asked; multiple choice and `loglikelihood` tasks are rated
(docs/models.md), one item per document. lm-eval makes the prompts, filters the answers and computes
the metrics. Its runner, which seeds the process's random state, is not used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

from heldout._core.config import Sampling
from heldout._core.versions import is_editable
from heldout._evals.rollout import EvalDefinition
from heldout._live.isolation import untouched_random_state
from heldout.adapters.lm_eval.documents import build_documents, check_documents
from heldout.adapters.lm_eval.names import TaskFile, addresses, find_task_files, refusal
from heldout.adapters.lm_eval.published import describe_published, has_functions
from heldout.adapters.lm_eval.score import AskedTasks, LmEvalTasks, MetricNames, RatedTasks
from heldout.adapters.seam import Row, TaskAdapter
from heldout.errors import InvalidInput, printable_error

log = logging.getLogger("heldout")

FEWSHOT_SEED = 1234
"""lm-eval's own default."""
MAX_TOKENS = 256
"""lm-eval's own default (`max_gen_toks`)."""
_RATED = ("multiple_choice", "loglikelihood")
_GENERATION = {"until", "max_gen_toks", "max_new_tokens", "temperature", "top_p", "do_sample"}


def from_lm_eval(
    task: str | Mapping[str, Any],
    *,
    num_fewshot: int | None = None,
    limit: int | None = None,
    chat: bool = False,
    multiturn: bool = True,
    system_prompt: str | None = None,
    metric: str | None = None,
    generation_kwargs: Mapping[str, Any] | None = None,
    include_path: str | Path | Sequence[str | Path] = (),
    unsafe_code: bool = False,
    fewshot_seed: int = FEWSHOT_SEED,
) -> EvalDefinition:
    """Make an eval of a task of lm-eval, or of all tasks of a group.

    Args:
        task: Its name, the path of a YAML file, or a config as such a file has it.
        num_fewshot: Examples in each prompt; by default as many as the task says.
        limit: Only the first so many documents of each task.
        chat: Whether prompts are conversations, which the model's chat template renders. Without,
            they are texts: a rated continuation continues them as they are, and to generate, a
            text is the user's message (a model without a chat template continues it).
        multiturn: In a conversation, whether each example is a turn of its own.
        system_prompt: A system message, or a text before everything else.
        metric: Which metric is the reward: "exact_match", or "exact_match,flexible-extract" to
            name the filter, too. By default the task's first metric with its first filter.
        generation_kwargs: What to change of the task's own.
        include_path: Folders with YAML files of one's own.
        unsafe_code: Whether a task may run code that the model writes, on this machine.
        fewshot_seed: Seed of the examples.

    Raises:
        InvalidInput: There is no such task, it cannot be an eval, or its data cannot be loaded or
            is not valid.
    """
    ADAPTER.check()
    with untouched_random_state():
        tasks = _load_tasks(task, _as_paths(include_path), unsafe_code)
        for name, loaded in tasks.items():
            _check_task(name, loaded, unsafe_code)
            _set_fewshot(name, loaded, num_fewshot, fewshot_seed)
            if generation_kwargs and loaded.OUTPUT_TYPE == "generate_until":
                changed = {**(loaded.config.generation_kwargs or {}), **generation_kwargs}
                loaded.set_config("generation_kwargs", changed)
        reward = _agree({n: MetricNames.of(t).find(metric, n) for n, t in tasks.items()}, "metric")
        output = _agree({n: t.OUTPUT_TYPE in _RATED for n, t in tasks.items()}, "output_type")
        sampling = None
        if not output:
            sampling = _agree({n: _sampling_of(n, t) for n, t in tasks.items()}, "generation")
        kind = RatedTasks if output else AskedTasks
        made = kind(str(task), tasks, reward, sampling)
        how = PromptSettings(limit, chat, multiturn, system_prompt)
        made.built = [row for n, t in tasks.items() for row in _build(n, t, how)]
        if len(tasks) == 1:  # a log is of one task
            [(name, only)] = tasks.items()
            is_installed = task == name and not include_path and name in find_task_files()
            made.published = _describe(name, only, reward, how, fewshot_seed, is_installed)
        return made.definition()


def _describe(
    name: str, task: Any, reward: str, how: PromptSettings, seed: int, is_installed: bool
) -> dict[str, Any] | None:
    """Return what names the task as its logs do; None where its code may be another one."""
    package = distribution("lm-eval")
    has_own_code = not is_installed and has_functions(task.config.to_dict(keep_callable=True))
    if has_own_code or is_editable(package):
        return None
    return describe_published(
        name,
        version=package.version,
        config=json.loads(json.dumps(task.config.to_dict(), default=str)),
        fewshot_seed=seed,
        chat=how.chat,
        multiturn=how.multiturn,
        system_prompt=how.system_prompt,
        rewards=[reward],
    )


def task_names(include_path: str | Path | Sequence[str | Path] = ()) -> dict[str, str | None]:
    """Return the tasks and groups that are installed, with the reason where one cannot run."""
    ADAPTER.check()
    found = find_task_files(_as_paths(include_path))
    return {
        name: None if found[name].is_group else refusal(found[name].keys) for name in sorted(found)
    }


def task_downloads() -> dict[str, tuple[str, ...]]:
    """Return what the installed tasks download and is not in the hub's cache, by task."""
    return {name: addresses(file) for name, file in find_task_files().items()}


class PromptSettings(NamedTuple):
    """Which documents are asked, and in which form; see `from_lm_eval`."""

    limit: int | None
    chat: bool
    multiturn: bool
    system_prompt: str | None


def _as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    given = [paths] if isinstance(paths, str | Path) else paths
    found = [Path(path) for path in given]
    for path in found:
        if not path.is_dir():
            raise InvalidInput(f"include_path: there is no folder {path}")
    return found


# --- Loading ------------------------------------------------------------------------------------


def _load_tasks(
    task: str | Mapping[str, Any], include_path: list[Path], unsafe_code: bool
) -> dict[str, Any]:
    """Load a task or the tasks of a group, and what can be known before that refuse first."""
    where = include_path
    if isinstance(task, str):
        name, spec = task, task
        if not task.endswith((".yaml", ".yml")):
            files = find_task_files(include_path)
            if task in files:
                _refuse(task, files[task], unsafe_code)
                # Of one folder, since reading all takes lm-eval fifteen seconds.
                where = [files[task].path.parent, *include_path]
        elif not Path(task).is_file():
            raise InvalidInput(f"there is no file {task}")
    else:
        name = str(task.get("task") or "task")
        spec = deepcopy({"task": name, **task})  # type: ignore[assignment]  # or a config
        if why := refusal(spec, unsafe_code=unsafe_code):  # type: ignore[arg-type]
            raise InvalidInput(f"{name} cannot be an eval: {why}")
    try:
        loaded = _load(spec, where, include_path)
    except InvalidInput:
        raise
    except Exception as problem:
        raise InvalidInput(
            f"lm-eval could not load {name}: {type(problem).__name__}: "
            f"{printable_error(problem)[:500]}"
        ) from problem
    if not loaded:
        raise InvalidInput(f"{name} has no tasks")
    return loaded


def _refuse(name: str, file: TaskFile, unsafe_code: bool) -> None:
    if not file.is_group and (why := refusal(file.keys, unsafe_code=unsafe_code)):
        raise InvalidInput(f"{name} cannot be an eval: {why}")


def _load(spec: Any, where: list[Path], include_path: list[Path]) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    folders: list[str | Path] = list(dict.fromkeys(where))
    manager = TaskManager(include_defaults=False, include_path=folders or None)
    if isinstance(spec, str) and spec not in manager.all_tasks and not Path(spec).is_file():
        manager = TaskManager(include_path=list(include_path) or None)  # a tag, or what is nowhere
        if spec not in manager.all_tasks:
            raise InvalidInput(
                f"lm-eval has no task {spec!r}; `heldout tasks lm-eval` lists them, and "
                "include_path adds folders"
            )
    try:
        return dict(manager.load([spec])["tasks"])
    except KeyError:
        # A group of tasks in other folders.
        return dict(TaskManager(include_path=list(include_path) or None).load([spec])["tasks"])


def _check_task(name: str, task: Any, unsafe_code: bool) -> None:
    from lm_eval.api.task import ConfigurableTask

    why = None
    if not isinstance(task, ConfigurableTask):
        why = "it is a Python class with a loop of its own"
    elif task.OUTPUT_TYPE not in (*_RATED, "generate_until", "loglikelihood_rolling"):
        why = f"its output_type is {task.OUTPUT_TYPE!r}"
    else:
        why = refusal(vars(task.config), unsafe_code=unsafe_code)
    if why:
        raise InvalidInput(f"{name} cannot be an eval: {why}")
    names = MetricNames.of(task)
    if names.corpus:
        log.warning(
            "lm-eval %s: left out, as they are of all documents together: %s",
            name,
            ", ".join(names.corpus),
        )


def _set_fewshot(name: str, task: Any, num_fewshot: int | None, seed: int) -> None:
    own = task.config.num_fewshot
    if num_fewshot is not None:
        if own == 0 and num_fewshot:
            raise InvalidInput(f"{name} sets num_fewshot=0, and lm-eval takes no other for it")
        task.set_config("num_fewshot", num_fewshot)
    elif own is None:
        task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(seed)


def _sampling_of(name: str, task: Any) -> Sampling:
    given = dict(task.config.generation_kwargs or {})
    if given.pop("num_beams", 1) != 1 or (unknown := sorted(given.keys() - _GENERATION)):
        what = "num_beams" if given.keys() <= _GENERATION else ", ".join(unknown)
        raise InvalidInput(
            f"{name}: generation_kwargs has {what}, which is not honoured here; "
            f"{', '.join(sorted(_GENERATION))} are"
        )
    until = given.get("until") or []
    drawn = given.get("do_sample") is not False
    return Sampling(
        temperature=float(given.get("temperature") or 0.0) if drawn else 0.0,
        top_p=float(given["top_p"]) if drawn and given.get("top_p") else None,
        max_tokens=int(given.get("max_gen_toks") or given.get("max_new_tokens") or MAX_TOKENS),
        stop=tuple(t for t in ([until] if isinstance(until, str) else until) if t),
    )


def _agree(values: Mapping[str, Any], what: str) -> Any:
    """Return what all tasks of a group have in common, or refuse the group."""
    first, *others = values.items()
    for name, value in others:
        if value != first[1]:
            raise InvalidInput(
                f"the tasks of this group differ in {what}: {first[0]} has {first[1]!r}, {name} "
                f"has {value!r}; make an eval of each"
            )
    return first[1]


# --- Documents ----------------------------------------------------------------------------------


def _build(name: str, task: Any, how: PromptSettings) -> Iterator[Row]:
    """Build all prompts, once and in order: examples are drawn from one stream."""
    try:
        documents = build_documents(
            task,
            limit=how.limit,
            system_instruction=how.system_prompt,
            apply_chat_template=how.chat,
            fewshot_as_multiturn=how.chat and how.multiturn,
            chat_template=_keep_messages if how.chat else None,
        )
    except Exception as problem:
        raise InvalidInput(
            f"lm-eval could not make the prompts of {name}: {type(problem).__name__}: "
            f"{printable_error(problem)[:500]}"
        ) from problem
    if note := check_documents(name, task, documents):
        log.warning("lm-eval %s: %s", name, note)
    for document in documents:
        instances = sorted(document.requests, key=lambda instance: instance.idx)
        asked, truth = _describe_document(name, task, document.number, instances, how.chat)
        metadata = {"task": name, "doc_id": document.number}
        doc = instances[0].doc
        yield Row(asked, truth, metadata, stem=name, content=dict(doc), source=instances)


def _keep_messages(messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
    """Stand in for a chat template: the endpoint has the model's."""
    assert add_generation_prompt  # it is False for gen_prefix, which is refused
    return json.dumps(messages)


def _describe_document(
    name: str, task: Any, number: int, instances: Sequence[Any], chat: bool
) -> tuple[dict[str, Any], Any]:
    """Return the input and the ground truth of a document's sample."""
    doc, target = instances[0].doc, task.doc_to_target(instances[0].doc)
    where = f"{name}, document {number}"

    def prompt_of(instance: Any) -> Any:
        text = instance.arguments[0]
        return json.loads(text) if chat and text else text

    if task.OUTPUT_TYPE == "generate_until":
        if task.config.doc_to_choice is not None:
            choices = task.doc_to_choice(doc)
            target = choices[_find_gold(target, choices, where)[0]]
        return {"prompt": prompt_of(instances[0])}, _plain(target)
    if task.OUTPUT_TYPE == "multiple_choice" and not callable(task.config.process_results):
        choices = task.doc_to_choice(doc)
        gold = task.doc_to_text(doc) if task.multiple_input else target
        right = [choices[index] for index in _find_gold(gold, choices, where)]
        target = right if isinstance(gold, list) else right[0]
    texts = [instance.arguments[1] for instance in instances]
    prompts = [prompt_of(instance) for instance in instances]
    if all(prompt == prompts[0] for prompt in prompts):
        return {"prompt": prompts[0], "continuations": texts}, _plain(target)
    return {"prompts": prompts, "continuations": texts}, _plain(target)


def _find_gold(gold: Any, choices: Sequence[str], where: str) -> list[int]:
    """Return the right choices' positions. lm-eval gives 0 to every answer where there is none."""
    found = []
    for label in gold if isinstance(gold, list) else [gold]:
        index = choices.index(label) if isinstance(label, str) and label in choices else label
        if not isinstance(index, int) or not 0 <= index < len(choices):
            raise InvalidInput(
                f"{where}: the right answer is {label!r:.100}, which is none of its "
                f"{len(choices)} choices"
            )
        found.append(index)
    if not found:
        raise InvalidInput(f"{where}: there is no right answer among its {len(choices)} choices")
    return found


def _plain(target: Any) -> Any:
    return target if isinstance(target, str | int | float | list) else str(target)


ADAPTER = TaskAdapter(
    "lm-eval",
    "lm-eval",
    ">=0.4.13,<0.5",
    from_lm_eval,
    task_names,
    task_downloads,
    why="newer ones have other interfaces",
)

__all__ = ["ADAPTER", "LmEvalTasks", "from_lm_eval", "task_downloads", "task_names"]
