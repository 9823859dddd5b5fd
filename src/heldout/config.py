"""How an eval is run: one frozen value, checked when it is made.

The text under each field is also what `heldout run --help` prints for `--set`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from heldout._checks import check_count, check_flag, check_number, check_text
from heldout._providers import check_model_name, model_name, runs_here
from heldout._secrets import redact_values
from heldout.errors import InvalidInput
from heldout.prices import Price, find_price

MAX_TURNS = 16
"""Model turns of one item where neither the user nor the eval says how many."""
MAX_ERROR_RATE = 0.1
"""With more errors, counting them as 0 or leaving them out moves a mean by more than most effects
that an eval is run to detect. So many are nearly always a bug in the eval, too."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the policy's tokens are drawn. The default is greedy, as an eval wants it."""

    temperature: float | None = 0.0
    """0 is greedy. None leaves it out of requests, for models that refuse the field; a model in
    this process is greedy then."""
    top_p: float | None = None
    """Nucleus sampling; None leaves it to the endpoint."""
    max_tokens: int | None = None
    """Longest turn, in tokens; None leaves it to the endpoint (smollm2: 64; hf, vllm: 512)."""
    stop: tuple[str, ...] = ()
    """Stop sequences: texts that end a model turn."""
    seed: int | None = None
    """Makes sampled turns repeatable: each (sample, repeat) draws from its own stream."""
    extra_body: dict[str, Any] | None = field(default=None, hash=False)
    """Further fields of the request to a server, as extra_body.KEY=VALUE; null leaves a field out.
    They are saved with the run, keys redacted."""
    stream: bool = False
    """Receive turns as a stream of events, from a server that times out otherwise."""

    def __post_init__(self) -> None:
        if self.extra_body is not None:
            _check_extra_body(self.extra_body)
            object.__setattr__(self, "extra_body", self.extra_body or None)
        object.__setattr__(self, "stop", _texts("sampling.stop", self.stop))
        check_number("sampling.temperature", self.temperature, low=0, optional=True)
        check_number("sampling.top_p", self.top_p, low=0, high=1, optional=True)
        if self.top_p == 0:
            raise InvalidInput("sampling.top_p is above 0; for greedy set temperature=0")
        check_count("sampling.max_tokens", self.max_tokens, low=1, optional=True)
        check_count("sampling.seed", self.seed, low=0, optional=True)
        check_flag("sampling.stream", self.stream)

    def for_item(self, sample_id: str, repeat: int) -> Sampling:
        """Give an item its own seed, if there is one, so that repeats are not copies."""
        if self.seed is None:
            return self
        return self._seeded(f"{self.seed}:{repeat}:{sample_id}")

    def for_turn(self, turn: int) -> Sampling:
        """Give a turn of an item its own seed, so that no turn draws what another one drew."""
        return self if self.seed is None or turn == 0 else self._seeded(f"{self.seed}:{turn}")

    def _seeded(self, text: str) -> Sampling:
        seed = (
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
            & 0x7FFFFFFF
        )
        return replace(self, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, as run.json has them: optional fields where set, no keys."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["extra_body"] = redact_values(self.extra_body)
        for name in ("extra_body", "stream"):
            if not plain[name]:
                del plain[name]
        return {**plain, "stop": [*self.stop]}


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Everything `evaluate` needs to know besides the samples and the score function."""

    endpoint: Any = "smollm2"
    """The model: openai:MODEL, openai:MODEL@http://host/v1, PROVIDER:MODEL (anthropic:MODEL, …),
    hf:PATH, vllm:PATH, smollm2; in Python also an endpoint object or a function of the messages."""
    experiment_name: str | None = None
    """Name of the run and of its directory; None takes the eval file's, or else the time."""
    max_samples: int | None = None
    """Run only the first N samples; None runs all."""
    max_concurrent: int = 16
    """Items in flight at once."""
    repeats: int = 1
    """Attempts of each sample; error bars are clustered by sample."""
    max_turns: int | None = None
    """Maximum model turns of one item, where an environment replies; None takes the eval's own
    limit (EvalDefinition.max_turns), or else 16."""
    token_budget: int | None = None
    """Length of a conversation, in tokens of prompt, model and environment, at which no further
    turn starts; the endpoint must report its usage. None: no limit."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are drawn: sampling.temperature, .top_p, .max_tokens, .stop, .seed."""
    timeout: float | None = 600.0
    """Seconds one item may take, retries and scoring included; None: no limit."""
    retries: int = 4
    """How often a request is retried after a transient failure (429, 5xx, dropped)."""
    on_error: Literal["zero", "raise"] = "zero"
    """zero: an errored item counts as 0 in `mean` and is left out of `mean_scored`;
    raise: stop at the first."""
    max_error_rate: float | None = MAX_ERROR_RATE
    """Above this share of errored items the eval fails instead of reporting a mean; 1 accepts any,
    as long as one item has a score."""
    pass_threshold: float = 0.5
    """Reward from which an item counts as passed."""
    output_dir: str = "outputs/evals"
    """Where run directories are made."""
    resume: bool = False
    """Resume an unfinished run: keeps finished items, runs errored ones again."""
    save_turns: bool = False
    """Save every turn of an item, so that a resumed run goes on in the middle of an episode;
    environments need snapshots (docs/environments.md)."""
    progress: bool = True
    """Show progress, if there is a terminal."""
    tags: tuple[str, ...] = ()
    """Words to find the run by, with `heldout list --tag`."""
    note: str | None = None
    """A remark that is saved with the run."""
    cache: bool | str = False
    """Take model turns from the response cache, and add new ones to it: true, or the path of its
    file. For servers and models on disk."""
    price: Price | None = None
    """What a million tokens of the model cost: price.input and price.output. None takes the user's
    file of prices (heldout.prices), and where that has none there is no cost."""

    def __post_init__(self) -> None:
        if isinstance(self.price, dict):
            object.__setattr__(self, "price", Price.from_dict(self.price))
        for path in ("output_dir", "cache"):
            if isinstance(getattr(self, path), Path):
                object.__setattr__(self, path, str(getattr(self, path)))
        check_text("experiment_name", self.experiment_name, empty=True, optional=True)
        name = self.experiment_name
        if name is not None and not re.fullmatch(r"(\w[\w.+=@ -]*/)?\w[\w.+=@ -]*", name):
            raise InvalidInput(
                f"experiment_name becomes a directory, or two (name/run): letters, digits and "
                f". _ - + = @, starting with a letter or digit; got {name!r}"
            )
        check_text("output_dir", self.output_dir)
        if "\0" in self.output_dir:
            raise InvalidInput(f"output_dir is a path, got {self.output_dir!r}")
        object.__setattr__(self, "tags", _texts("tags", self.tags))
        check_text("note", self.note, empty=True, optional=True)
        check_sampling(self.sampling)
        if not isinstance(self.price, Price | None):
            raise InvalidInput(f"price is a heldout.Price, got {self.price!r:.200}")
        for count in ("max_concurrent", "repeats"):
            check_count(count, getattr(self, count), low=1)
        for count in ("max_turns", "max_samples", "token_budget"):
            check_count(count, getattr(self, count), low=1, optional=True)
        check_count("retries", self.retries, low=0)
        check_number("timeout", self.timeout, low=0, optional=True)
        if self.timeout == 0:
            raise InvalidInput("timeout is above 0 seconds; None is without bound")
        if self.on_error not in ("zero", "raise"):
            raise InvalidInput(f"on_error is 'zero' or 'raise', got {self.on_error!r:.200}")
        check_number("max_error_rate", self.max_error_rate, low=0, high=1, optional=True)
        if self.on_error == "raise" and self.max_error_rate not in (None, 1, MAX_ERROR_RATE):
            raise InvalidInput(
                "max_error_rate has no effect with on_error='raise', which stops at the first "
                "error; set one of the two"
            )
        check_number("pass_threshold", self.pass_threshold)
        for flag in ("resume", "save_turns", "progress"):
            check_flag(flag, getattr(self, flag))
        if self.resume and self.experiment_name is None:
            raise InvalidInput("resume=True needs the experiment_name of the run to go on with")
        if self.cache in ("true", "false", ""):  # of a command line or a file of settings
            object.__setattr__(self, "cache", self.cache == "true")
        if not isinstance(self.cache, bool):
            check_text("cache (True, False or the path of its file)", self.cache)
        check_endpoint(self.endpoint)
        if self.sampling.extra_body or self.sampling.stream:
            _check_is_server(self.endpoint)


# What may differ between a run and its resumption without changing any result.
_HARMLESS = {
    "endpoint.max_batch", "experiment_name", "max_concurrent", "timeout", "retries", "on_error",
    "max_error_rate", "pass_threshold", "output_dir", "resume", "save_turns", "progress",
    "cache", "sampling.stream", "price.input", "price.output", "tags", "note",
}  # fmt: skip


def config_to_dict(config: EvalConfig, endpoint: dict[str, Any]) -> dict[str, Any]:
    """Convert a config, and the endpoint's description of itself, to what run.json holds."""
    plain = {f.name: getattr(config, f.name) for f in fields(config)}
    for name in ("cache", "tags", "note"):
        if not plain[name]:
            del plain[name]
    # Judges have prices, too: a file that has none is refused now, and not when the run is done.
    listed = find_price(model_name(endpoint) or "")
    price = config.price or listed
    del plain["price"]
    if price is not None:
        plain["price"] = {"input": price.input, "output": price.output}
    return {**plain, "endpoint": endpoint, "sampling": config.sampling.to_dict()}


def result_changing(config: dict[str, Any]) -> dict[str, Any]:
    """Select the part of a stored config that a resumed run must share, by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": v for inner, v in value.items()})
        else:
            flat[key] = value
    return {key: value for key, value in flat.items() if key not in _HARMLESS}


def check_sampling(sampling: Any) -> None:
    """Refuse a value that is no `Sampling`."""
    if not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling is a heldout.Sampling, got {sampling!r:.200}")


def check_endpoint(endpoint: Any) -> None:
    """Refuse what can be no endpoint; whether a model is there shows when it is opened."""
    if isinstance(endpoint, str):
        check_model_name(endpoint)
    elif not callable(endpoint) and not callable(getattr(endpoint, "complete", None)):
        raise InvalidInput(
            f"endpoint is a string, a function of the messages or an endpoint object, "
            f"got {endpoint!r}"
        )


def _check_is_server(endpoint: Any) -> None:
    is_local = isinstance(endpoint, str) and runs_here(endpoint)
    if is_local or not (isinstance(endpoint, str) or hasattr(endpoint, "complete")):
        raise InvalidInput(
            f"sampling.extra_body and sampling.stream are for servers; {endpoint!r} is none"
        )


def _check_extra_body(extra: Any) -> None:
    if not isinstance(extra, dict) or not all(isinstance(key, str) for key in extra):
        raise InvalidInput(f"sampling.extra_body is a dict of request fields, got {extra!r:.200}")
    try:
        json.dumps(extra, allow_nan=False)
        msgspec.json.encode(extra)  # as it is stored and sent: numbers of 64 bits
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(f"sampling.extra_body is not valid JSON: {problem}") from None


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Return texts as a tuple; one text is a tuple of one."""
    if not isinstance(value, str | list | tuple | set | frozenset):
        raise InvalidInput(f"{name} is a list of texts, got {value!r:.200}")
    texts = (value,) if isinstance(value, str) else tuple(value)
    for text in texts:
        check_text(f"each of {name}", text)
    return texts


base_config = EvalConfig()
"""The defaults, to start from: `replace(base_config, max_samples=100)`."""
