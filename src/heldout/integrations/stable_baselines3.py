"""stable-baselines3's models as policies, and evaluation while they train.

    report = evaluate_env(make_env, policy_of(model), episodes=100, num_envs=16)

    model.learn(100_000, callback=HeldoutEvalCallback(make_env, every_steps=10_000, episodes=100))

Trained weights are the same, bit for bit, with the callback and without it. `every_steps` counts
environment steps as the model does (`num_timesteps`), however many environments it trains in.
"""

from __future__ import annotations

import json
import logging
import platform
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import no_grad

from heldout.errors import HeldoutError, InvalidInput
from heldout.isolation import eval_mode
from heldout.vector.drivers import NORMALISED_TWICE, as_numpy, layers, normalizes
from heldout.vector.evaluation import PolicyFn, SuccessFn
from heldout.vector.report import VectorReport
from heldout.vector.training import EvalEvery, EvalPoint

log = logging.getLogger("heldout")

ALGORITHMS = {"a2c": A2C, "ddpg": DDPG, "dqn": DQN, "ppo": PPO, "sac": SAC, "td3": TD3}

ROWS = 8 if platform.machine() in ("aarch64", "arm64") else 16
"""How many observations the network sees at once, always the same number: what it says of a row
differs in its last bits between batches of different size, and with it whole episodes. (A multiple
of 16 is not enough: on a GPU every size had its own bits.) At 16 a row does not depend on its
place; on x86 that is not so at 8. On ARM it is, and torch takes a path 20 times slower from 12."""


def policy_of(model: Any, *, vec_normalize: Any = None, deterministic: bool = True) -> PolicyFn:
    """A policy function of a stable-baselines3 model, acting as `model.predict` does.

    The network is called directly, on the model's own device, which costs less than `predict`;
    where a model has a `predict` of its own, that is used. Weights are those at the time of the
    call. Train/eval flags of its modules are put back after each. It says with `normalizes`
    whether it normalises observations; environments that have done so already are then refused.

    Observations are normalised with the statistics of `vec_normalize`, which are used and never
    updated: by default those that the model trains with; False for none, where `make_env`
    returns observations that are normalised already.
    """
    vec_normalize = _normalizer(model, vec_normalize)
    normalize = None if vec_normalize is None else vec_normalize.normalize_obs
    policy = getattr(model, "policy", model)
    by_network = _predicts_as_usual(model, policy, deterministic)
    act = _by_network(policy, deterministic) if by_network else _by_predict(model, deterministic)
    # Looked up once: this is done at every step. predict() sets the flag of every module.
    modules = [m for m in policy.modules() if not (by_network and _always_the_same(m))]

    def policy_fn(observations: Any) -> NDArray[Any]:
        observations = _parts(as_numpy, observations)
        if normalize is not None:
            observations = normalize(observations)
        first = next(iter(observations.values())) if _is_dict(observations) else observations
        with eval_mode(modules), no_grad():
            if len(first) == ROWS:
                return act(observations)
            found = [
                act(_parts(partial(_rows, start=start), observations))[: len(first) - start]
                for start in range(0, len(first), ROWS)
            ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    policy_fn.normalizes = normalize is not None  # type: ignore[attr-defined]
    return policy_fn


def _normalizer(model: Any, given: Any) -> Any:
    """The VecNormalize that observations go through; None where they are left as they are."""
    if given is None and hasattr(model, "get_vec_normalize_env"):
        given = model.get_vec_normalize_env()
    return given if given and getattr(given, "norm_obs", True) else None


def _always_the_same(module: Any) -> bool:
    """Whether it does the same in training and out of it, so that its flag need not be touched."""
    kind = type(module)
    if kind.__module__.startswith("stable_baselines3."):
        return True
    return kind.__module__.startswith("torch.nn.") and kind.__name__ in FLAGLESS


FLAGLESS = {
    "Conv1d", "Conv2d", "ELU", "Flatten", "GELU", "Identity", "LeakyReLU", "Linear", "ModuleDict",
    "ModuleList", "ReLU", "Sequential", "SiLU", "Sigmoid", "Softplus", "Tanh",
}  # fmt: skip
"""Modules of torch whose forward pass does not look at `training`."""


def load_policy(
    saved: str | Path, *, device: str = "auto", vec_normalize: str | Path | None = None
) -> PolicyFn:
    """`policy_of` a model in a file, on that device: `PATH`, or `ppo:PATH` to name its algorithm.

    `vec_normalize` is the file of the statistics it was trained with. Files of models and of
    statistics are pickles: loading them runs what is in them.
    """
    name, _, rest = str(saved).partition(":")
    algorithm = ALGORITHMS.get(name.lower()) if rest else None
    path = _file(rest if algorithm is not None else saved, "model", ".zip")
    if device.startswith("cuda"):
        import torch

        # stable-baselines3 would take the CPU instead, without a word.
        if not torch.cuda.is_available():
            raise InvalidInput(f"there is no CUDA device here, and device is {device!r}")
    statistics = None if vec_normalize is None else _statistics(vec_normalize)
    try:
        model = (algorithm or _algorithm_of(path)).load(path, device=device)
    except HeldoutError:
        raise
    except Exception as problem:
        raise InvalidInput(
            f"{path} could not be loaded as a model of stable-baselines3: "
            f"{type(problem).__name__}: {problem}"
        ) from problem
    return policy_of(model, vec_normalize=statistics)


def _file(given: str | Path, what: str, suffix: str) -> Path:
    for path in (Path(given), Path(f"{given}{suffix}")):
        if path.is_file():
            return path
    raise InvalidInput(f"there is no {what} at {given}")


def _algorithm_of(path: Path) -> Any:
    """The one that saved a model, from the settings beside its weights."""
    with zipfile.ZipFile(path) as archive:
        settings = json.loads(archive.read("data"))
    package = str(settings["policy_class"].get("__module__", ""))
    found = ALGORITHMS.get(package.removeprefix("stable_baselines3.").partition(".")[0])
    if package == "stable_baselines3.common.policies":
        found = PPO if "clip_range" in settings else A2C
    if found is None:
        raise InvalidInput(
            f"{path} does not say which algorithm it is of; name it: one of {[*ALGORITHMS]}, as in "
            f"ppo:{path}"
        )
    return found


def _statistics(given: str | Path) -> Any:
    path = _file(given, "VecNormalize", ".pkl")
    try:
        with path.open("rb") as file:  # given a path, it would leave it open where it fails
            statistics = load_from_pkl(file)
    except Exception as problem:
        raise InvalidInput(f"{path} could not be loaded: {problem!r}") from problem
    if not isinstance(statistics, VecNormalize):
        raise InvalidInput(f"{path} holds no VecNormalize, but {type(statistics).__name__}")
    return statistics


def _is_dict(observations: Any) -> bool:
    return isinstance(observations, dict)


def _parts(function: Callable[[Any], Any], observations: Any) -> Any:
    if _is_dict(observations):
        return {key: function(part) for key, part in observations.items()}
    return function(observations)


def _rows(part: NDArray[Any], start: int) -> NDArray[Any]:
    """ROWS of them from there on, the last one repeated where they do not suffice."""
    rows = part[start : start + ROWS]
    missing = ROWS - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) if missing else rows


# --- The network itself -------------------------------------------------------------------------


def _predicts_as_usual(model: Any, policy: Any, deterministic: bool) -> bool:
    """Whether its predict() is the one whose work `_by_network` does."""
    if not isinstance(policy, BasePolicy):
        raise InvalidInput(
            f"policy_of takes a stable-baselines3 model or policy, got {model!r:.120}"
        )
    usual = type(policy).predict is BasePolicy.predict
    if model is not policy and type(model).predict is not BaseAlgorithm.predict:
        # DQN's own predict() differs from the usual one where it explores.
        usual = usual and deterministic and type(model).predict is DQN.predict
    return usual


def _by_predict(model: Any, deterministic: bool) -> Callable[[Any], NDArray[Any]]:
    def act(observations: Any) -> NDArray[Any]:
        actions, state = model.predict(observations, deterministic=deterministic)
        if state is not None:
            raise InvalidInput(
                f"{type(model).__name__} carries a state from step to step, which a function of "
                "observations alone cannot: write a policy_fn that keeps it"
            )
        return np.asarray(actions)

    return act


def _by_network(policy: Any, deterministic: bool) -> Callable[[Any], NDArray[Any]]:
    """What BasePolicy.predict does, without its switching of modes and its guesses at shapes."""
    import torch
    from gymnasium.spaces import Box

    space, seen, device = policy.action_space, policy.observation_space, policy.device
    plain = _is_plain(policy)
    choose = _shortcut(policy) if deterministic else None

    def act(observations: Any) -> NDArray[Any]:
        if plain and observations.shape[1:] == seen.shape:
            tensor = torch.as_tensor(observations, device=device)
        else:
            tensor, _ = policy.obs_to_tensor(observations)
        if choose is not None:
            chosen = choose(tensor)
        else:
            chosen = policy._predict(tensor, deterministic=deterministic)
        actions: NDArray[Any] = chosen.cpu().numpy().reshape((-1, *space.shape))
        if isinstance(space, Box):
            if policy.squash_output:
                actions = policy.unscale_action(actions)
            else:
                actions = np.clip(actions, space.low, space.high)
        return actions

    return act


def _is_plain(policy: Any) -> bool:
    """Whether observations are numbers that the network takes as they are."""
    from gymnasium.spaces import Box

    seen = policy.observation_space
    return isinstance(seen, Box) and not is_image_space(seen)


def _shortcut(policy: Any) -> Callable[[Any], Any] | None:
    """PPO's and A2C's most likely action without building a distribution to ask for it."""
    steps = ("_predict", "get_distribution", "_get_action_dist_from_latent", "extract_features")
    if not isinstance(policy, ActorCriticPolicy) or any(
        getattr(type(policy), step) is not getattr(ActorCriticPolicy, step) for step in steps
    ):
        return None
    kind = type(policy.action_dist).__name__
    if kind not in ("CategoricalDistribution", "DiagGaussianDistribution"):
        return None

    flat = type(policy.pi_features_extractor) is FlattenExtractor and _is_plain(policy)

    def choose(tensor: Any) -> Any:
        if flat:
            features = tensor.float().flatten(1)
        else:
            features = BasePolicy.extract_features(policy, tensor, policy.pi_features_extractor)
        found = policy.action_net(policy.mlp_extractor.forward_actor(features))
        if kind == "DiagGaussianDistribution":
            return found
        # predict() asks for the largest probability; this is it without the rounding in between.
        return found.argmax(dim=1)

    return choose


# --- While it trains ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far. Its value is the largest of `among`, so it flatters: evaluate
    the saved model on episodes of another seed before you report it."""

    step: int
    by: str
    value: float
    ci_low: float | None
    ci_high: float | None
    among: int
    """How many evaluations it was chosen from."""
    path: Path | None
    """Where the model was saved."""


class HeldoutEvalCallback(BaseCallback):  # type: ignore[misc]
    """Evaluates the model every `every_steps` environment steps, and at the end.

    `make_env` makes environments for the evaluation alone; one that training uses is refused.
    Numbers go to the model's logger as `eval/…`, at the step they belong to, past whatever the
    trainer has recorded and not yet written. `history` holds every evaluation and every skip: one
    that fails is a skip with its reason, and training goes on.

    `keep_best` names a directory for the best model so far by `best_by`: `best_model.zip`, and
    `vecnormalize.pkl` where it trains with one. `best` says what was best, with its interval.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        every_steps: int,
        *,
        episodes: int = 100,
        num_envs: int = 1,
        seed: int = 0,
        max_steps: int | None = None,
        success: SuccessFn | None = None,
        deterministic: bool = True,
        vec_normalize: Any = None,
        at_start: bool = False,
        at_end: bool = True,
        keep_best: str | Path | None = None,
        best_by: Literal["success_rate", "mean_return"] = "success_rate",
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if best_by not in ("success_rate", "mean_return"):
            raise InvalidInput(f"best_by is 'success_rate' or 'mean_return', got {best_by!r}")
        self.best: Best | None = None
        self._act: PolicyFn | None = None
        self._deterministic, self._vec_normalize = deterministic, vec_normalize
        self._make_env, self._at_start, self._at_end = make_env, at_start, at_end
        self._keep_best = Path(keep_best) if keep_best is not None else None
        self._best_by = best_by
        self._evaluated: tuple[int, int] | None = None
        """Step and number of updates of the last evaluation."""
        self._evals = EvalEvery(
            every_steps,
            self._own_env if callable(make_env) else make_env,
            self._policy,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=success,
        )

    @property
    def history(self) -> list[EvalPoint]:
        return self._evals.history

    def _on_training_start(self) -> None:
        self._act = None
        self._evaluated = None
        self._evals.begin(self.num_timesteps)
        if self._at_start:
            self._take(self._evals.run)

    def _on_step(self) -> bool:
        self._take(self._evals.maybe_run)
        return True

    def _on_training_end(self) -> None:
        # At the same step, the last update may have come after the last evaluation.
        if self._at_end and self._evaluated != self._now():
            self._take(self._evals.run)

    def _now(self) -> tuple[int, int]:
        return self.num_timesteps, int(getattr(self.model, "_n_updates", 0))

    def _take(self, run: Callable[[int], VectorReport | None]) -> None:
        known = len(self.history)
        report = run(self.num_timesteps)
        if len(self.history) == known:
            return
        self._evaluated = self._now()
        try:
            self._write(self.history[-1])
            if report is not None:
                self._compare(report)
        except Exception as problem:
            # Nor must a full disk end the training.
            log.warning("evaluation at step %s: %s", self.num_timesteps, problem, exc_info=problem)

    def _policy(self, observations: Any) -> Any:
        if self._act is None:
            self._act = policy_of(
                self.model, vec_normalize=self._vec_normalize, deterministic=self._deterministic
            )
        return self._act(observations)

    def _own_env(self) -> Any:
        env = self._make_env()
        taken = {id(inner) for inner in layers(self.model.get_env())}
        if any(id(inner) in taken for inner in layers(env)):
            raise InvalidInput(
                "make_env() returned an environment that training uses; evaluation needs its own"
            )
        if normalizes(env) and _normalizer(self.model, self._vec_normalize) is not None:
            env.close()
            raise InvalidInput(NORMALISED_TWICE)
        return env

    def _write(self, point: EvalPoint) -> None:
        # A logger of its own onto the same outputs: dumping the trainer's would write down what
        # the trainer has recorded so far, at a step that is not its own.
        logger = Logger(folder=None, output_formats=self.logger.output_formats)
        logger.set_level(self.logger.level)
        if point.report is None:
            logger.record("eval/skipped", 1)
            logger.record("eval/reason", point.skipped, exclude="tensorboard")
        else:
            for key, value in point.report.summary.items():
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if number and key not in ("num_envs", "seed"):
                    logger.record(f"eval/{key}", value)
        logger.record("eval/seconds", point.seconds)
        logger.record("time/total_timesteps", point.step, exclude="tensorboard")
        logger.dump(point.step)

    def _compare(self, report: VectorReport) -> None:
        by = self._best_by
        value = report.summary[by]
        if value is None:
            return
        among = sum(point.report is not None for point in self.history)
        if self.best is not None and value <= self.best.value:
            self.best = replace(self.best, among=among)
            return
        path = self._save() if self._keep_best is not None else None
        low, high = report.summary[f"{by}_ci_low"], report.summary[f"{by}_ci_high"]
        self.best = Best(self.num_timesteps, by, value, low, high, among, path)

    def _save(self) -> Path:
        assert self._keep_best is not None
        self._keep_best.mkdir(parents=True, exist_ok=True)
        path = self._keep_best / "best_model.zip"
        self.model.save(path)
        normalize = self._vec_normalize
        if normalize is None:
            normalize = self.model.get_vec_normalize_env()
        if normalize:
            normalize.save(str(self._keep_best / "vecnormalize.pkl"))
        return path
