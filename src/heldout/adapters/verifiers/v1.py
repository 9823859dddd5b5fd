"""A taskset or an environment of verifiers v1 (0.4) as a heldout eval.

A sample is a task. Its rollout is the package's own, in this process (`v1_rollout.py`): setup,
harness, tool servers, stops, rewards. What cannot run so is refused here, before anything runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.interception import InterceptionServerConfig
from verifiers.v1.runtimes import runtime_is_local
from verifiers.v1.utils.compile import resolve_runtime_config, validate_pairing
from verifiers.v1.utils.decorators import discover_decorated

from heldout._core.config import NO_TURN_LIMIT
from heldout._evals.rollout import EvalDefinition
from heldout.adapters.seam import Conversation, Row
from heldout.adapters.verifiers.scores import ScoredByVerifiers
from heldout.adapters.verifiers.v1_chat import ChatHarness
from heldout.adapters.verifiers.v1_rollout import (
    CLIENT,
    MODEL,
    AgentRunner,
    EnvRunner,
    LoopServers,
    run_task,
)
from heldout.errors import InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.types import Sample

REFUSED = {
    "BestOfNEnv": "it compares several attempts; heldout repeats samples itself (`repeats`)",
    "TextArenaEnv": "it seeds Python's global random numbers; use textarena:NAME",
    "harbor": "its tasks run in containers, which heldout does not start",
    "textarena": "it seeds Python's global random numbers; use textarena:NAME",
}
"""Why an environment or a taskset of the package cannot be an eval, by class or by id."""
OWN_FIELDS = {*vf.TaskData.model_fields} - {"id", "name", "prompt", "system_prompt"}


def from_v1(
    source: Any,
    *,
    harness: Any = None,
    limit: int | None = None,
    metadata: Sequence[str] = (),
    allow_code: bool = False,
    **config: Any,
) -> EvalDefinition:
    """Make an eval of a taskset, or of an environment with one role.

    Args:
        source: A `vf.Taskset`, a `vf.Env`, or the id of an installed taskset.
        harness: A `vf.Harness`, a `vf.HarnessConfig` or an id. By default the one that comes with
            the taskset, else `null`, whose chat loop runs in this process.
        limit: Take the first tasks alone; an infinite taskset needs it.
        metadata: Fields of the tasks' data to slice results by.
        allow_code: Let a harness run what the model writes on this machine.
        **config: The taskset's config, where it is loaded by id.

    Returns:
        The eval. Its `max_turns` is that of the environment's agent; without one there is no limit.

    Raises:
        InvalidInput: It cannot be an eval; the message says why.
    """
    env, taskset = _load(source, config)
    role, spec = _find_role(env)
    chosen = _load_harness(harness, spec, "" if env is None else env.config.taskset.id)
    _check_harness(chosen, allow_code=allow_code)
    shared = taskset.toolsets(taskset.config)
    tasks = _take_tasks(taskset, limit)
    for task in tasks:
        _check_task(task, chosen, shared, rewarded=type(env) not in (type(None), vf.SingleAgentEnv))
    # `chosen` is put in its place when it runs; its own may have no id to be found by.
    spec = spec.model_copy(update={"harness": vf.harness_config_type("null")(id="null")})
    runner: Any
    if env is None:
        runner = AgentRunner(spec, chosen, shared)
    else:
        # Its own constructor, since where it runs is decided there.
        local = {role: spec, "interception": InterceptionServerConfig()}
        config = env.config.model_copy(update={**local, "retries": vf.RetryConfig()})
        runner = EnvRunner(type(env)(config), role, chosen)
    identity = _identify(env, taskset, tasks, chosen, shared)
    name = f"verifiers:{type(taskset).__name__}"
    limit_of_turns = spec.max_turns or NO_TURN_LIMIT
    return V1Eval(name, tasks, metadata, LoopServers(runner), identity, limit_of_turns).definition()


class V1Eval(ScoredByVerifiers):
    """The tasks of a taskset, each of which is run by its harness."""

    def __init__(
        self,
        name: str,
        tasks: Sequence[Any],
        metadata: Sequence[str],
        servers: LoopServers,
        source: str,
        max_turns: int,
    ) -> None:
        self.name, self.source, self.max_turns = name, source, max_turns
        self._tasks, self._metadata, self._servers = tasks, metadata, servers

    def rows(self) -> Iterator[Row]:
        """Return the tasks: an id is the task's own, or a hash of its content."""
        for task in self._tasks:
            data = task.data.model_dump(mode="json", exclude={"idx"}, exclude_defaults=True)
            for field in self._metadata:
                if field not in (fields := type(task.data).model_fields):
                    known = [name for name in fields if name not in OWN_FIELDS]
                    raise InvalidInput(
                        f"metadata: tasks have no field {field!r}; they have {known}"
                    )
            about = {**{field: data.get(field) for field in self._metadata}, "idx": task.data.idx}
            own = task.data.id or task.data.name
            yield Row(data, data.get("answer"), about, own, stem="task", source=task)

    async def converse(self, sample: Sample, conversation: Conversation) -> dict[str, Any]:
        """Run the rollout of a task."""
        return await run_task(conversation, task=self.source_of(sample), servers=self._servers)


# --- Taskset, environment, harness --------------------------------------------------------------


def _load(source: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the environment, None for a taskset alone, and the taskset."""
    if isinstance(source, str):
        _check_name(source)
        try:
            settings = vf.resolve_env_config({"taskset": {"id": source, **config}})
            source = vf.load_environment(settings)
        except ValidationError as problem:
            wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problem.errors()]
            fields = ", ".join(vf.taskset_config_type(source).model_fields)
            raise InvalidInput(
                f"the config of {source}: {'; '.join(wrong)}. It has {fields}"
            ) from problem
        except (ImportError, AttributeError, TypeError, ValueError) as problem:
            raise InvalidInput(
                f"verifiers cannot load {source!r}: {problem} If it is an environment of verifiers "
                "before 0.4: pip install 'verifiers>=0.3,<0.4'"
            ) from problem
    elif config:
        raise InvalidInput(
            f"from_verifiers has no argument {min(config)!r}; a taskset's own config is passed "
            "along with its id alone"
        )
    if isinstance(source, vf.Taskset):
        return None, source
    if not isinstance(source, vf.Env):
        raise InvalidInput(
            "from_verifiers takes a vf.Taskset, a vf.Env or an id with verifiers 0.4, which has no "
            f"classic environments any more; got {source!r:.200}. For those: "
            "pip install 'verifiers>=0.3,<0.4'"
        )
    return source, source.taskset


def _find_role(env: Any) -> tuple[str, Any]:
    """Return the name of the only role, and its agent's config, made to run in this process."""
    if env is None:
        local = vf.SubprocessConfig()
        return "agent", vf.AgentConfig(runtime=local, model=MODEL, client=CLIENT)
    name = type(env).__name__
    roles = {role: spec for role, spec in env.config if isinstance(spec, vf.AgentConfig)}
    _check_roles(name, roles)
    ((role, spec),) = roles.items()
    if "runtime" in spec.model_fields_set and not isinstance(spec.runtime, vf.SubprocessConfig):
        raise InvalidInput(
            f"the agent of {name} runs in a {spec.runtime.type} container; here it runs in this "
            "process. Leave out its runtime, or set vf.SubprocessConfig()"
        )
    # It is the policy, whatever model the environment names.
    own = {"runtime": vf.SubprocessConfig(), "model": MODEL, "client": CLIENT}
    return role, spec.model_copy(update={**own, "retries": vf.RetryConfig()})


def _load_harness(given: Any, spec: Any, taskset_id: str) -> Any:
    if given is None:
        given = spec.harness
    if given is None:
        given = vf.default_harness_id(taskset_id)
        # A shell on this machine is nobody's wish by default.
        given = "null" if given == "bash" else given
    try:
        if isinstance(given, str):
            given = vf.harness_config_type(given)(id=given)
        if isinstance(given, vf.HarnessConfig):
            given = vf.load_harness(given)
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise InvalidInput(f"verifiers cannot load the harness {given!r}: {problem}") from problem
    if not isinstance(given, vf.Harness):
        raise InvalidInput(
            f"harness must be a vf.Harness, a vf.HarnessConfig or an id, got {given!r:.200}"
        )
    return ChatHarness(given.config) if type(given) is NullHarness else given


# --- What is refused ----------------------------------------------------------------------------


def check_classes(taskset_id: str) -> None:
    """Check what the classes of an installed taskset tell, without its config or its tasks.

    Raises:
        InvalidInput: It cannot be an eval here.
    """
    _check_name(taskset_id)
    try:
        task, env = vf.task_type(taskset_id), vf.environment_class(taskset_id)
        fields = vf.env_config_type(taskset_id).model_fields
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise InvalidInput(f"it cannot be loaded: {problem}") from problem
    roles = [name for name, info in fields.items() if isinstance(info.default, vf.AgentConfig)]
    _check_roles(env.__name__, roles)
    if task.NEEDS_CONTAINER:
        raise InvalidInput(f"{task.__name__} needs a container, which heldout does not start")
    _check_harness(_load_harness(None, vf.AgentConfig(), taskset_id), allow_code=False)


def _check_name(name: str) -> None:
    if why := REFUSED.get(name):
        raise InvalidInput(f"{name} cannot be an eval: {why}")


def _check_roles(name: str, roles: Collection[str]) -> None:
    _check_name(name)
    if len(roles) != 1:
        raise InvalidInput(
            f"{name} has several agents ({', '.join(roles)}), which would all be the policy; an "
            "eval is one conversation with it"
        )


def _check_harness(harness: Any, *, allow_code: bool) -> None:
    name = f"the harness {type(harness).__name__}"
    if harness.NEEDS_CONTAINER or isinstance(harness, vf.ACPHarness):
        raise InvalidInput(
            f"{name} drives a program in a container, which heldout does not start. Take "
            'harness="null", or one that sets NEEDS_CONTAINER = False'
        )
    if harness.EXECUTES_CODE and not allow_code:
        raise InvalidInput(
            f"{name} lets the model run code on this machine (EXECUTES_CODE). If that is meant, "
            "pass allow_code=True; if it runs none, set EXECUTES_CODE = False"
        )
    compaction = getattr(harness.config, "compaction", None)
    if getattr(compaction, "summarize_at_tokens", None) is not None:
        raise InvalidInput(
            f"{name} rewrites the conversation (compaction.summarize_at_tokens), which may only "
            "grow here; set compaction=None"
        )


def _check_task(task: Any, harness: Any, shared: Sequence[Any], *, rewarded: bool) -> None:
    name = f"task {task.data.idx} ({type(task).__name__})"
    toolsets = [*task.toolsets(task.config), *shared]
    try:
        validate_pairing(harness, type(task), vf.SubprocessConfig(), tools=toolsets)
        resolve_runtime_config(vf.SubprocessConfig(), task, set())
        has_reward = bool(task.hooks("reward") or task.plugged_judges())
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise InvalidInput(f"{name} cannot run here: {problem}") from problem
    for toolset in toolsets:
        _check_toolset(toolset)
    if hooks := [function.__name__ for function in discover_decorated(task, "intercept")]:
        raise InvalidInput(
            f"{name} rewrites what is said ({', '.join(hooks)}); a conversation may only grow here"
        )
    if task.data.agent_user is not None or task.data.skills:
        raise InvalidInput(f"{name} wants an agent_user or skills, which need a container")
    if not rewarded and not has_reward and type(task).score is vf.Task.score:
        raise InvalidInput(f"{name} has no reward, so there is nothing to report")


@functools.cache
def _is_a_program(module: str) -> bool:
    """Return whether `python -m module` starts a tool server."""
    try:
        found = importlib.util.find_spec(module) is not None
        source = inspect.getsource(sys.modules[module]) if found else ""
    except (ImportError, KeyError, OSError, TypeError, ValueError):
        return False
    return "__main__" in source and ".run()" in source


def _check_toolset(toolset: Any) -> None:
    name, config = type(toolset).__name__, toolset.config
    if config.url:
        return
    if not runtime_is_local(config.runtime) or config.runtime.type != "subprocess":
        raise InvalidInput(
            f"the tool server {name} runs in a {config.runtime.type} container, which heldout "
            "does not start"
        )
    module = type(toolset).__module__
    if not _is_a_program(module):
        raise InvalidInput(
            f"the tool server {name} is started as `python -m {module}`, which does not work: put "
            f'it into a module that can be imported and ends in `if __name__ == "__main__": '
            f"{name}.run()`"
        )


# --- Tasks and identity -----------------------------------------------------------------------


def _take_tasks(taskset: Any, limit: int | None) -> list[Any]:
    name = type(taskset).__name__
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidInput(f"limit must be a whole number >= 1, got {limit!r}")
        taskset = taskset.take(limit)
    elif not taskset.bounded:
        raise InvalidInput(f"{name} has no end: pass limit, the number of tasks to take")
    try:
        tasks = list(taskset)
    except Exception as problem:
        raise InvalidInput(
            f"{name} could not load its tasks: {type(problem).__name__}: {problem}"
        ) from problem
    if not tasks:
        raise InvalidInput(f"{name} has no tasks")
    return tasks


def _identify(
    env: Any, taskset: Any, tasks: Sequence[Any], harness: Any, shared: Sequence[Any]
) -> str:
    """Return a fingerprint of everything that decides what happens and what it scores."""
    task = tasks[0]
    things = [env, taskset, task, harness, *task.toolsets(task.config), *shared]
    parts: list[Any] = [
        [describe_callable(type(thing), docstrings=True), _dump(thing.config)]
        for thing in things
        if thing is not None
    ]
    for kind in ("reward", "metric", "stop"):
        hooks = task.hooks(kind)
        parts += [[kind, hook.__name__, describe_callable(hook)] for hook in hooks]
    content = json.dumps(parts, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _dump(config: Any) -> Any:
    # Where an environment's agent runs, and under which address, decides no score.
    return config.model_dump(mode="json", exclude={"interception", "run", "output_dir"})
