"""stable-baselines3's models as policies, and evaluation while they train.

    report = evaluate_env(make_env, policy_of(model), episodes=100, num_envs=16)

    model.learn(100_000, callback=HeldoutEvalCallback(make_env, every_steps=10_000, episodes=100))

Trained weights are the same, bit for bit, with the callback and without it. `every_steps` counts
environment steps as the model does (`num_timesteps`), however many environments it trains in.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import should_collect_more_steps
from stable_baselines3.common.vec_env import VecNormalize

from heldout._live.isolation import eval_mode
from heldout.errors import HeldoutError, InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.training.curve.points import CurvePoint
from heldout.training.curve.publishing import Heartbeat, Monitor
from heldout.training.curve.stored_verdicts import CORRECTED_EVALS
from heldout.training.curve.verdicts import CurveMonitor, best_checkpoint
from heldout.vector.drivers import NORMALISED_TWICE, as_numpy, layers, map_leaves, normalizes
from heldout.vector.evaluation import PolicyFn, SuccessFn, SuccessWord
from heldout.vector.report import Reward, VectorReport
from heldout.vector.training import LABEL, EvalEvery, EvalPoint

log = logging.getLogger("heldout")

ALGORITHMS = {"a2c": A2C, "ddpg": DDPG, "dqn": DQN, "ppo": PPO, "sac": SAC, "td3": TD3}

ROWS = 8 if platform.machine() in ("aarch64", "arm64") else 16
"""How many observations the network gets at once, always the same number: its output for a row
differs in the last bits between batches of different size, and with it whole episodes. (A multiple
of 16 is not enough: on a GPU every size had its own bits.) At 16 a row does not depend on its
place; on x86 it does at 8. On ARM it does not, and from 12 on torch is 20 times slower there."""


def policy_of(model: Any, *, vec_normalize: Any = None, deterministic: bool = True) -> PolicyFn:
    """Make a policy function of a stable-baselines3 model, acting as `model.predict` does.

    The network is called directly, on the model's own device, which costs less than `predict`;
    where a model has a `predict` of its own, that is used. Weights are those at the time of the
    call. Train/eval flags of its modules are restored after each.

    Args:
        model: A model, or its policy.
        vec_normalize: The VecNormalize whose statistics normalise observations, and are never
            updated: by default the one that the model trains with; False for none, where
            `make_env` returns observations that are normalised already.
        deterministic: Whether to take the most likely action instead of drawing one.

    Returns:
        A function of a batch of observations. Its attribute `normalizes` says whether it
        normalises them; environments that do so too are then refused.

    Raises:
        InvalidInput: It is neither a model nor a policy.
    """
    vec_normalize = _find_normalizer(model, vec_normalize)
    normalize = None if vec_normalize is None else vec_normalize.normalize_obs
    policy = getattr(model, "policy", model)
    if _predicts_as_usual(model, policy, deterministic):
        act = _act_by_network(policy, deterministic)
    else:
        act = _act_by_predict(model, deterministic)
    modules = list(policy.modules())

    def policy_fn(observations: Any) -> NDArray[Any]:
        observations = map_leaves(as_numpy, observations)
        if normalize is not None:
            observations = normalize(observations)
        first = next(iter(observations.values())) if type(observations) is dict else observations
        count = len(first)
        with eval_mode([module for module in modules if module.training]), torch.no_grad():
            if count == ROWS:
                return act(observations)
            actions = [
                act(map_leaves(partial(_take_rows, start=start), observations))[: count - start]
                for start in range(0, count, ROWS)
            ]
        return actions[0] if len(actions) == 1 else np.concatenate(actions)

    policy_fn.normalizes = normalize is not None  # type: ignore[attr-defined]
    return policy_fn


def _find_normalizer(model: Any, vec_normalize: Any) -> Any:
    """Return the VecNormalize for a model's observations; None where there is none to apply."""
    if vec_normalize is None and hasattr(model, "get_vec_normalize_env"):
        vec_normalize = model.get_vec_normalize_env()
    return vec_normalize if vec_normalize and getattr(vec_normalize, "norm_obs", True) else None


def _take_rows(part: NDArray[Any], start: int) -> NDArray[Any]:
    """Take ROWS rows from `start` on, with the last one repeated where there are fewer."""
    rows = part[start : start + ROWS]
    missing = ROWS - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) if missing else rows


def load_policy(
    path: str | Path, *, device: str = "auto", vec_normalize: str | Path | None = None
) -> PolicyFn:
    """Make a policy function of a saved model. Loading it runs the code in its pickles.

    Args:
        path: The model's file, or `ppo:FILE` to name its algorithm.
        device: Where to load it.
        vec_normalize: The file of the VecNormalize it was trained with.

    Returns:
        What `policy_of` returns.

    Raises:
        InvalidInput: A file is missing or holds something else, or there is no such device.
    """
    name, _, rest = str(path).partition(":")
    algorithm = ALGORITHMS.get(name.lower()) if rest else None
    file = _find_file(path if algorithm is None else rest, "model", ".zip")
    if device.startswith("cuda") and not torch.cuda.is_available():
        # stable-baselines3 would use the CPU instead, silently.
        raise InvalidInput(f"there is no CUDA device here, and device is {device!r}")
    statistics = None if vec_normalize is None else _load_statistics(vec_normalize)
    try:
        model = (algorithm or _read_algorithm(file)).load(file, device=device)
    except HeldoutError:
        raise
    except Exception as problem:
        raise InvalidInput(
            f"{file} could not be loaded as a model of stable-baselines3: "
            f"{type(problem).__name__}: {problem}"
        ) from problem
    return policy_of(model, vec_normalize=statistics)


def _find_file(name: str | Path, what: str, suffix: str) -> Path:
    for path in (Path(name), Path(f"{name}{suffix}")):
        if path.is_file():
            return path
    raise InvalidInput(f"there is no {what} at {name}")


def _read_algorithm(path: Path) -> Any:
    """Find the algorithm that saved a model, from the settings next to its weights."""
    with zipfile.ZipFile(path) as archive:
        settings = json.loads(archive.read("data"))
    package = str(settings["policy_class"].get("__module__", ""))
    algorithm = ALGORITHMS.get(package.removeprefix("stable_baselines3.").partition(".")[0])
    if package == "stable_baselines3.common.policies":
        algorithm = PPO if "clip_range" in settings else A2C
    if algorithm is None:
        raise InvalidInput(
            f"{path} does not say which algorithm it is of; name it: one of {[*ALGORITHMS]}, as in "
            f"ppo:{path}"
        )
    return algorithm


def _load_statistics(name: str | Path) -> VecNormalize:
    path = _find_file(name, "VecNormalize", ".pkl")
    try:
        with path.open("rb") as file:  # given a path, it would leave it open where it fails
            statistics = load_from_pkl(file)
    except Exception as problem:
        raise InvalidInput(f"{path} could not be loaded: {problem!r}") from problem
    if not isinstance(statistics, VecNormalize):
        raise InvalidInput(f"{path} holds no VecNormalize, but {type(statistics).__name__}")
    return statistics


# --- The network itself -------------------------------------------------------------------------


def _predicts_as_usual(model: Any, policy: Any, deterministic: bool) -> bool:
    """Return whether `predict` is the one that `_act_by_network` replaces."""
    if not isinstance(policy, BasePolicy):
        raise InvalidInput(
            f"policy_of takes a stable-baselines3 model or policy, got {model!r:.120}"
        )
    usual = type(policy).predict is BasePolicy.predict
    if model is not policy and type(model).predict is not BaseAlgorithm.predict:
        # DQN's own predict() differs from the usual one where it explores.
        usual = usual and deterministic and type(model).predict is DQN.predict
    return usual


def _act_by_predict(model: Any, deterministic: bool) -> Callable[[Any], NDArray[Any]]:
    def act(observations: Any) -> NDArray[Any]:
        actions, state = model.predict(observations, deterministic=deterministic)
        if state is not None:
            raise InvalidInput(
                f"{type(model).__name__} carries a state from step to step, which a function of "
                "observations alone cannot: write a policy_fn that keeps it"
            )
        return np.asarray(actions)

    return act


def _act_by_network(policy: Any, deterministic: bool) -> Callable[[Any], NDArray[Any]]:
    """Do what BasePolicy.predict does, without its switching of modes and guesses at shapes."""
    action_space, observation_space = policy.action_space, policy.observation_space
    plain, device = _takes_plain_numbers(policy), policy.device
    choose = _most_likely_action(policy) if deterministic else None

    def act(observations: Any) -> NDArray[Any]:
        if plain and observations.shape[1:] == observation_space.shape:
            tensor = torch.as_tensor(observations, device=device)
        else:
            tensor, _ = policy.obs_to_tensor(observations)
        if choose is not None:
            chosen = choose(tensor)
        else:
            chosen = policy._predict(tensor, deterministic=deterministic)
        actions: NDArray[Any] = chosen.cpu().numpy().reshape((-1, *action_space.shape))
        if isinstance(action_space, Box):
            if policy.squash_output:
                actions = policy.unscale_action(actions)
            else:
                actions = np.clip(actions, action_space.low, action_space.high)
        return actions

    return act


def _takes_plain_numbers(policy: Any) -> bool:
    space = policy.observation_space
    return isinstance(space, Box) and not is_image_space(space)


def _most_likely_action(policy: Any) -> Callable[[Any], Any] | None:
    """Return PPO's and A2C's most likely action without building a distribution, if possible."""
    methods = ("_predict", "get_distribution", "_get_action_dist_from_latent", "extract_features")
    if not isinstance(policy, ActorCriticPolicy) or any(
        getattr(type(policy), name) is not getattr(ActorCriticPolicy, name) for name in methods
    ):
        return None
    distribution = type(policy.action_dist).__name__
    if distribution not in ("CategoricalDistribution", "DiagGaussianDistribution"):
        return None
    extractor = policy.pi_features_extractor
    flat = type(extractor) is FlattenExtractor and _takes_plain_numbers(policy)

    def choose(tensor: Any) -> Any:
        if flat:
            features = tensor.float().flatten(1)
        else:
            features = BasePolicy.extract_features(policy, tensor, extractor)
        scores = policy.action_net(policy.mlp_extractor.forward_actor(features))
        if distribution == "DiagGaussianDistribution":
            return scores
        # predict() takes the largest probability; this is it without the rounding in between.
        return scores.argmax(dim=1)

    return choose


# --- While it trains ----------------------------------------------------------------------------

BestBy = Literal["success_rate", "mean_return"]
"""Which curve says what the best model is."""
METRICS: dict[BestBy, Reward] = {"success_rate": "success", "mean_return": "return"}
"""What the reward of an episode is, by curve."""
MODEL_NAME = "best_model.zip"


@dataclass(frozen=True, slots=True)
class BestEvaluation:
    """The best evaluation on the curve: the one that `heldout curve show` names, by its numbers.

    Even the corrected value is of episodes that it was picked by: evaluate the saved model on
    episodes of another seed before you report it.
    """

    step: int
    by: str
    value: float
    """As measured: the maximum of `among` evaluations, so it is biased upwards."""
    estimate: float | None
    """The value corrected for having been picked; None, like the interval, if it is unknown."""
    ci_low: float | None
    ci_high: float | None
    among: int
    """How many evaluations it was chosen from."""
    path: Path | None
    """Where the model was saved."""


class HeldoutEvalCallback(BaseCallback):  # type: ignore[misc]
    """Evaluates the model every `every_steps` environment steps, and at the end.

    The curve is in a run directory, for `heldout curve`, with a verdict at each evaluation.
    Training ends where the monitor asks for it, and at the next rollout where `heldout curve stop`
    does. Numbers also go to the model's logger as `eval/…`, at the step they belong to, without
    writing what the trainer has recorded and not yet dumped. `history` holds every evaluation and
    every skip: one that fails is a skip with its reason, and training goes on. `best` says which
    was best, with its interval.

    A training run that goes on (`reset_num_timesteps=False`) continues its curve.

    Args:
        make_env: Makes environments for the evaluation alone; one that training uses is refused
            when training starts.
        every_steps: In environment steps, as the model counts them.
        episodes: How many episodes an evaluation plays.
        num_envs: How many plain environments to run side by side.
        seed: Of every evaluation, so that all of them play the same episodes.
        max_steps: Truncates longer episodes.
        success: As in `evaluate_env`.
        deterministic: As in `policy_of`.
        vec_normalize: As in `policy_of`.
        at_start: Whether to evaluate before the first step.
        at_end: Whether to evaluate after the last update.
        keep_best: A directory for the best model so far: `best_model.zip`, and `vecnormalize.pkl`
            where it trains with one.
        best_by: What the best model has most of, and what the curve is of; the mean return unless
            `success` is given. "success_rate" needs `success`, or an environment that says so.
        verbose: As in BaseCallback.
        label: As in `EvalEvery`.
        run_dir: As in `EvalEvery`.
        resume: As in `EvalEvery`.
        monitor: As in `PeriodicEval`.
        heartbeat_fn: As in `PeriodicEval`.

    Raises:
        InvalidInput: An argument cannot be used.
        RunExists: As in `PeriodicEval`.
        ResumeMismatch: The curve to be continued is of another evaluation.
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
        success: SuccessFn | SuccessWord | None = None,
        deterministic: bool = True,
        vec_normalize: Any = None,
        at_start: bool = False,
        at_end: bool = True,
        keep_best: str | Path | None = None,
        best_by: BestBy | None = None,
        verbose: int = 0,
        label: str = LABEL,
        run_dir: str | Path | None = None,
        resume: bool | None = None,
        monitor: Monitor | None = None,
        heartbeat_fn: Heartbeat | None = None,
    ) -> None:
        super().__init__(verbose)
        if best_by is None:
            best_by = "mean_return" if success is None else "success_rate"
        if best_by not in METRICS:
            raise InvalidInput(f"best_by must be 'success_rate' or 'mean_return', got {best_by!r}")
        self._act: PolicyFn | None = None
        self._deterministic, self._vec_normalize = deterministic, vec_normalize
        self._make_env, self._at_start, self._at_end = make_env, at_start, at_end
        self._keep_best = Path(keep_best) if keep_best is not None else None
        self._best_by: BestBy = best_by
        self._bounds = monitor.terms.bounds if isinstance(monitor, CurveMonitor) else None
        self._reads_stop = False
        self._evals = EvalEvery(
            every_steps,
            self._make_own_env if callable(make_env) else make_env,
            self._policy,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=success,
            model=self._weights,
            reward=METRICS[best_by],
            label=label,
            run_dir=run_dir,
            resume=resume,
            monitor=monitor,
            heartbeat_fn=heartbeat_fn,
            identity={
                "make_env": describe_callable(make_env),
                "policy": {"deterministic": deterministic},
            },
        )

    @property
    def history(self) -> list[EvalPoint]:
        """Every evaluation that was due, skipped ones too."""
        return self._evals.history

    @property
    def run_dir(self) -> Path:
        """Where the curve is, or will be."""
        return self._evals.run_dir

    @property
    def points(self) -> list[CurvePoint]:
        """The curve as it stands, by step, earlier attempts included."""
        return self._evals.points

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation of the curve as it stands; None without one."""
        best = best_checkpoint(self.points, bounds=self._bounds, most=CORRECTED_EVALS)
        if best is None:
            return None
        return BestEvaluation(
            step=best.step,
            by=self._best_by,
            value=best.raw,
            estimate=best.estimate,
            ci_low=None if best.interval is None else best.interval.low,
            ci_high=None if best.interval is None else best.interval.high,
            among=best.candidates,
            path=self._saved_of(best.step),
        )

    @property
    def stop_requested(self) -> str | None:
        """Why training should stop, if the monitor or `heldout curve stop` said so."""
        return self._evals.stop_requested

    def _on_training_start(self) -> None:
        self._act = None
        self._evals.begin(self.num_timesteps, resume=self.num_timesteps > 0)
        if self._at_start:
            self._evaluate(self._evals.run)

    def _on_rollout_start(self) -> None:
        self._reads_stop = True

    def _on_step(self) -> bool:
        if self._at_end and self._is_last_step():
            return True  # the step is evaluated after its update, with the weights that it ends in
        # A look at the disk at every step of an environment would cost more than some of them.
        if not self._evaluate(self._evals.maybe_run) and not self._reads_stop:
            return True
        self._reads_stop = False
        reason = self._evals.stop_requested
        if reason is not None:
            log.warning("heldout: training stops at step %s: %s", self.num_timesteps, reason)
        return reason is None

    def _is_last_step(self) -> bool:
        """Return whether only the last update is left; False where an algorithm does not say."""
        if self.num_timesteps < getattr(self.model, "_total_timesteps", math.inf):
            return False
        known = self.locals
        if "n_rollout_steps" in known and "n_steps" in known:
            return bool(known["n_steps"] + 1 >= known["n_rollout_steps"])
        if "train_freq" in known and "num_collected_steps" in known:
            episodes = known["num_collected_episodes"] + int(np.sum(known["dones"]))
            collected = known["num_collected_steps"], episodes
            return not should_collect_more_steps(known["train_freq"], *collected)
        return False

    def _on_training_end(self) -> None:
        # At the same step, the last update may have come after the last evaluation.
        if self._at_end:
            self._evaluate(self._evals.run_final)
        else:
            self._evals.end()

    def _evaluate(self, run: Callable[[int], VectorReport | None]) -> bool:
        """Return whether there was an evaluation."""
        before = len(self.history)
        report = run(self.num_timesteps)
        if len(self.history) == before:
            return False
        try:
            self._log(self.history[-1])
            if report is not None and not self.history[-1].reused:
                self._keep_if_best()
        except Exception as problem:
            # Nor must a full disk end the training.
            log.warning("evaluation at step %s: %s", self.num_timesteps, problem, exc_info=problem)
        return True

    def _weights(self) -> dict[str, Any]:
        """What a point's hash covers: the policy, and its normalisation statistics."""
        weights: dict[str, Any] = {"policy": self.model.policy}
        normalizer = _find_normalizer(self.model, self._vec_normalize)
        if normalizer is not None:
            statistics = normalizer.obs_rms
            if not isinstance(statistics, dict):
                statistics = {"observation": statistics}
            for name, moments in statistics.items():
                values = (moments.mean, moments.var, np.asarray(moments.count))
                weights[f"obs_rms.{name}"] = [torch.as_tensor(value) for value in values]
        return weights

    def _policy(self, observations: Any) -> Any:
        if self._act is None:
            self._act = policy_of(
                self.model, vec_normalize=self._vec_normalize, deterministic=self._deterministic
            )
        return self._act(observations)

    def _make_own_env(self) -> Any:
        env = self._make_env()
        training = {id(layer) for layer in layers(self.model.get_env())}
        if any(id(layer) in training for layer in layers(env)):
            raise InvalidInput(
                "make_env() returned an environment that training uses; evaluation needs its own: "
                "make_env=lambda: gymnasium.make(…)"
            )
        if normalizes(env) and _find_normalizer(self.model, self._vec_normalize) is not None:
            env.close()
            raise InvalidInput(NORMALISED_TWICE)
        return env

    def _log(self, point: EvalPoint) -> None:
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

    def _keep_if_best(self) -> None:
        """Save the model if the curve says that the evaluation just made is the best."""
        if self._keep_best is None:
            return
        best = best_checkpoint(self.points, bounds=self._bounds, most=0)
        if best is not None and best.step == self.num_timesteps:
            self._save(self._keep_best)

    def _saved_of(self, step: int) -> Path | None:
        """Return the saved model if it is that of a step: an earlier training may have saved it."""
        path = None if self._keep_best is None else self._keep_best / MODEL_NAME
        if path is None or not path.exists():
            return None
        with zipfile.ZipFile(path) as archive:
            saved = json.loads(archive.read("data")).get("num_timesteps")
        return path if saved == step else None

    def _save(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / MODEL_NAME
        self.model.save(path)
        normalize = self._vec_normalize
        if normalize is None:
            normalize = self.model.get_vec_normalize_env()
        if normalize:
            normalize.save(str(directory / "vecnormalize.pkl"))
        return path


__all__ = [
    "BestBy",
    "HeldoutEvalCallback",
    "load_policy",
    "policy_of",
]
