"""How an eval is run: one frozen value, checked when it is made.

The text under each field is also what `heldout run --help` prints for `--set`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from heldout._core.checks import check_count, check_flag, check_number, check_text, check_texts
from heldout._core.prices import Price, find_price
from heldout._core.providers import check_model_name, model_name, runs_here
from heldout._core.secrets import redact_values
from heldout._core.until import NO_CLAIM, Until, parse_until
from heldout.errors import InvalidInput

MAX_TURNS = 16
"""Model turns of one item where neither the user nor the eval says how many."""
NO_TURN_LIMIT = 1_000_000
"""`max_turns` of an eval whose own code ends its conversations: agents of other packages, which a
limit that they do not have would cut in the middle. (An item's `timeout` holds all the same.)"""
LOCAL_MAX_TOKENS = 512
"""Tokens of a turn of a model in this process, in training too, where nothing else limits it."""
DEFAULT_PASS_THRESHOLD = 0.5
"""Reward from which an item counts as passed, where neither the user nor the eval says another."""
DEFAULT_LEVEL = 0.05
MAX_ERROR_RATE = 0.1
"""With more errors, counting them as 0 or leaving them out moves a mean by more than most effects
that an eval is run to detect. So many are nearly always a bug in the eval, too."""


ALIASES = {
    "model": "endpoint",
    "limit": "max_samples",
    "epochs": "repeats",
    "name": "experiment_name",
}
"""What the command line calls a setting, and what Python and run.json call it. Each shows its own
name and takes the other one, too: `resolve_aliases`."""

Config = TypeVar("Config")


def resolve_aliases(
    given: Mapping[str, Any], where: str, taken: Iterable[str] = ()
) -> dict[str, Any]:
    """Return settings by their names in Python.

    Args:
        given: Settings by either name.
        where: Where they come from, for the message.
        taken: Further settings that are given there, by their names in Python.

    Raises:
        InvalidInput: A setting is given by both of its names.
    """
    settings: dict[str, Any] = dict.fromkeys(taken)
    spelled = {name: name for name in settings}
    for name, value in given.items():
        field_name = ALIASES.get(name, name)
        if field_name in spelled:
            both = f"{spelled[field_name]} and {name}"
            raise InvalidInput(f"{where}: {both} are one setting, and both are given; give one")
        spelled[field_name], settings[field_name] = name, value
    return {name: value for name, value in settings.items() if name not in {*taken}}


def _take_aliases(owner: type[Config]) -> type[Config]:
    """Let a dataclass be made with aliases of its fields; its signature stays as it is."""
    make = owner.__init__
    names = [field.name for field in fields(owner)]  # type: ignore[arg-type]

    @functools.wraps(make)
    def make_of_either(self: Any, *args: Any, **settings: Any) -> None:
        if settings.keys() > {*names}:  # of `replace`, which gives every field: which one is meant?
            alias = min(settings.keys() & ALIASES)
            raise InvalidInput(f"replace: write {ALIASES[alias]}=…, as the field is called")
        make(self, *args, **resolve_aliases(settings, owner.__name__, names[: len(args)]))

    owner.__init__ = make_of_either  # type: ignore[method-assign]
    return owner


@dataclass(frozen=True, slots=True)
class _Unset:
    """The default of a setting: that nobody has set it, and what it is then."""

    value: Any


def _default(value: Any) -> Any:
    return _Unset(value)


# `replace` hands every field on, so that it cannot be asked what was given. This very object is the
# temperature that nobody has given: a 0.0 that somebody writes is another one. A call makes it: a
# constant may be shared with those of other modules.
_GREEDY = float("0.0")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the policy's tokens are drawn. The default is greedy, as an eval wants it.

    An eval may have a sampling of its own (EvalDefinition.sampling), over which what is given here
    wins, also where it equals the default.
    """

    temperature: float | None = _default(_GREEDY)
    """0 is greedy. None leaves it out of requests, for models that refuse the field; a model in
    this process is greedy then."""
    top_p: float | None = _default(None)
    """Nucleus sampling; None leaves it to the endpoint."""
    max_tokens: int | None = _default(None)
    """Longest turn, in tokens; None leaves it to the endpoint (smollm2: 64; hf, vllm: 512)."""
    stop: tuple[str, ...] = _default(())
    """Stop sequences: texts that end a model turn."""
    seed: int | None = None
    """Makes sampled turns repeatable: each (sample, repeat) draws from its own stream."""
    extra_body: dict[str, Any] | None = field(default=None, hash=False)
    """Further fields of the request to a server, as extra_body.KEY=VALUE; null leaves a field out.
    Models in this process take chat_template_kwargs. Saved with the run, keys redacted."""
    stream: bool = False
    """Receive turns as a stream of events, from a server that times out otherwise."""
    given: tuple[str, ...] | None = field(default=None, repr=False, compare=False, kw_only=True)
    """No setting: names of those that were given. `dataclasses.replace` passes it on, and adds what
    it changes; a None or () that it gives where there was none cannot be told from the default."""

    def __post_init__(self) -> None:
        if not isinstance(self.given, tuple | list | type(None)) or not {*MERGED}.issuperset(
            self.given or ()
        ):
            raise InvalidInput(f"given is no setting: it names {', '.join(MERGED)}")
        given = set(self.given or ())
        for name in MERGED:
            value, unset = getattr(self, name), _DEFAULTS[name]
            if isinstance(value, _Unset):
                object.__setattr__(self, name, unset)
            elif self.given is None or value is not unset:
                given.add(name)
        object.__setattr__(self, "given", tuple(sorted(given)))
        if self.extra_body is not None:
            _check_extra_body(self.extra_body)
            object.__setattr__(self, "extra_body", self.extra_body or None)
        object.__setattr__(self, "stop", check_texts("sampling.stop", self.stop))
        check_number("sampling.temperature", self.temperature, low=0, optional=True)
        check_number("sampling.top_p", self.top_p, low=0, high=1, optional=True)
        if self.top_p == 0:
            raise InvalidInput("sampling.top_p is above 0; for greedy set temperature=0")
        check_count("sampling.max_tokens", self.max_tokens, low=1, optional=True)
        check_count("sampling.seed", self.seed, low=0, optional=True)
        check_flag("sampling.stream", self.stream)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles still know which temperature nobody has given."""
        unset = [name for name in MERGED if name not in (self.given or ())]
        names = [f.name for f in SAMPLING_FIELDS if f.name not in unset]
        return _restore, ({name: getattr(self, name) for name in names}, self.given)

    def having(self, **given: Any) -> Sampling:
        """Copy with settings that somebody has given, be they the defaults."""
        names = {name for name in given if name in MERGED}
        return replace(self, **given, given=tuple({*(self.given or ()), *names}))

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
        plain = {f.name: getattr(self, f.name) for f in SAMPLING_FIELDS}
        plain["extra_body"] = redact_values(self.extra_body)
        for name in ("extra_body", "stream"):
            if not plain[name]:
                del plain[name]
        return {**plain, "stop": [*self.stop]}


def _restore(values: dict[str, Any], given: tuple[str, ...] | None) -> Sampling:
    return Sampling(**values, given=given)


SAMPLING_FIELDS = tuple(f for f in fields(Sampling) if f.name != "given")
"""The settings."""
_DEFAULTS = {f.name: f.default.value for f in SAMPLING_FIELDS if isinstance(f.default, _Unset)}
MERGED = tuple(_DEFAULTS)
"""Settings that an eval may have of its own."""


@_take_aliases
@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Everything `evaluate` needs to know besides the samples and the score function."""

    endpoint: Any = None
    """The model: openai:MODEL, openai:MODEL@http://host/v1, PROVIDER:MODEL (anthropic:MODEL, …),
    hf:PATH, vllm:PATH, smollm2; in Python also an endpoint object or a function of the messages.
    There is no default: an eval without a model is refused."""
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
    pass_threshold: float | None = None
    """Reward from which an item counts as passed; None takes the eval's own
    (EvalDefinition.pass_threshold), or else 0.5."""
    until: str | None = None
    """Stop when this claim is settled (docs/adaptive.md): "mean>0.8", "±0.02", "better than RUN",
    "not worse than RUN by 0.02"; "none" finishes the set of a run that was stopped."""
    level: float = DEFAULT_LEVEL
    """With until: how often a claim is settled wrongly, both sides together."""
    keep_power: bool = False
    """With until: stop later, and settle nearly as much as the full set would."""
    this_set: bool = False
    """With until: settle what the full run on these very samples would show, instead of what holds
    for samples like them."""
    cluster: str | None = None
    """With until: a metadata key. Samples that share its value are not independent: they run as one
    step, and it takes more of them; None takes those of equal content."""
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
    file of prices (heldout._core.prices), and where that has none there is no cost."""

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
        self._check_until()
        check_text("output_dir", self.output_dir)
        if "\0" in self.output_dir:
            raise InvalidInput(f"output_dir must be a path, got {self.output_dir!r}")
        object.__setattr__(self, "tags", check_texts("tags", self.tags))
        check_text("note", self.note, empty=True, optional=True)
        check_sampling(self.sampling)
        if not isinstance(self.price, Price | None):
            raise InvalidInput(f"price must be a heldout.Price, got {self.price!r:.200}")
        for count in ("max_concurrent", "repeats"):
            check_count(count, getattr(self, count), low=1)
        for count in ("max_turns", "max_samples", "token_budget"):
            check_count(count, getattr(self, count), low=1, optional=True)
        check_count("retries", self.retries, low=0)
        check_number("timeout", self.timeout, low=0, optional=True)
        if self.timeout == 0:
            raise InvalidInput("timeout must be greater than 0; use None for no limit")
        if self.on_error not in ("zero", "raise"):
            raise InvalidInput(f"on_error must be 'zero' or 'raise', got {self.on_error!r:.200}")
        check_number("max_error_rate", self.max_error_rate, low=0, high=1, optional=True)
        if self.on_error == "raise" and self.max_error_rate not in (None, 1, MAX_ERROR_RATE):
            raise InvalidInput(
                "max_error_rate has no effect with on_error='raise', which stops at the first "
                "error; set one of the two"
            )
        check_number("pass_threshold", self.pass_threshold, optional=True)
        for flag in ("resume", "save_turns", "progress", "keep_power", "this_set"):
            check_flag(flag, getattr(self, flag))
        if self.resume and self.experiment_name is None:
            raise InvalidInput("resume=True needs the experiment_name of the run to go on with")
        if self.cache and self.settles is not None and self.settles.baseline is not None:
            raise InvalidInput(
                "until compares new answers with a baseline, and those of the response cache may "
                "be the baseline's own: leave out cache"
            )
        if self.cache in ("true", "false", ""):  # of a command line or a file of settings
            object.__setattr__(self, "cache", self.cache == "true")
        if not isinstance(self.cache, bool):
            check_text("cache (True, False or the path of its file)", self.cache)
        if self.endpoint is None:  # a command line, a trainer or a checkpoint may name it later
            return
        check_endpoint(self.endpoint)
        if self.sampling.extra_body or self.sampling.stream:
            _check_takes_fields(self.endpoint, self.sampling)

    @property
    def settles(self) -> Until | None:
        """What the run settles; None of an ordinary run."""
        return None if self.until is None else parse_until(self.until)

    def _check_until(self) -> None:
        check_text("cluster", self.cluster, optional=True)
        check_number("level", self.level, low=1e-6, high=0.5)
        if self.until is not None:
            claim = parse_until(self.until)
            object.__setattr__(self, "until", NO_CLAIM if claim is None else str(claim))
        if self.until is None:  # beside "none" they are those of the claim that is left now
            given = [name for name in ("keep_power", "this_set") if getattr(self, name)]
            given += ["level"] * (self.level != DEFAULT_LEVEL)
            given += ["cluster"] * (self.cluster is not None)
            if given:
                raise InvalidInput(f"{given[0]} is of runs that stop: give until, too")


TEMPLATE_KWARGS = "chat_template_kwargs"
"""The field of `extra_body` that models in this process take, as servers of vLLM and SGLang do."""
_KINDS_HERE = ("local", "vllm")
"""Models in this process: a greedy turn of theirs draws nothing, whatever the seed."""
# What may differ between a run and its resumption without changing any result.
_HARMLESS = {
    "endpoint.max_batch", "experiment_name", "max_concurrent", "timeout", "retries", "on_error",
    "max_error_rate", "pass_threshold", "output_dir", "resume", "save_turns", "progress",
    "cache", "sampling.stream", "price.input", "price.output", "tags", "note", "question_fields",
}  # fmt: skip


UNTIL_SETTINGS = ("until", "level", "keep_power", "this_set", "cluster")
"""Settings that a run has only together with a claim."""


def config_to_dict(config: EvalConfig, endpoint: dict[str, Any]) -> dict[str, Any]:
    """Convert a config, and the endpoint's description of itself, to what run.json holds."""
    plain = {f.name: getattr(config, f.name) for f in fields(config)}
    for name in ("cache", "tags", "note"):
        if not plain[name]:
            del plain[name]
    if config.settles is None:
        for name in UNTIL_SETTINGS:
            del plain[name]
    elif config.cluster is None:
        del plain["cluster"]
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


def count_equal_attempts(config: Mapping[str, Any], functions: Mapping[str, Any]) -> int:
    """Count the attempts at each sample that are one request made again.

    They are where a model is greedy and nothing else tells attempts apart: no environment, whose
    replies may be drawn (a simulated user), and no seed that a server may use. A function or an
    object that answers may do as it likes.

    Args:
        config: A stored config.
        functions: What prepared and scored, as run.json has it.

    Returns:
        The attempts at each sample; 0 where they may differ.
    """
    sampling, endpoint = config.get("sampling"), config.get("endpoint")
    if not isinstance(sampling, Mapping) or not isinstance(endpoint, Mapping):
        return 0
    repeats, kind = config.get("repeats"), endpoint.get("kind")
    if not isinstance(repeats, int) or repeats < 2 or functions.get("environment_factory"):
        return 0
    if kind in _KINDS_HERE:
        return repeats if sampling.get("temperature") in (0, None) else 0
    is_server = "base_url" in endpoint or kind == "litellm"
    own_fields = sampling.get("extra_body") or {}
    has_chance = sampling.get("seed") is not None or {"temperature", "seed"} & {*own_fields}
    return repeats if is_server and sampling.get("temperature") == 0 and not has_chance else 0


def check_sampling(sampling: Any) -> None:
    """Refuse a value that is no `Sampling`."""
    if not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling must be a heldout.Sampling, got {sampling!r:.200}")


def check_endpoint(endpoint: Any) -> None:
    """Refuse what can be no endpoint; whether a model is there shows when it is opened."""
    if isinstance(endpoint, str):
        check_model_name(endpoint)
    elif not callable(endpoint) and not callable(getattr(endpoint, "complete", None)):
        raise InvalidInput(
            f"endpoint is a string, a function of the messages or an endpoint object, "
            f"got {endpoint!r}"
        )


def _check_takes_fields(endpoint: Any, sampling: Sampling) -> None:
    is_local = isinstance(endpoint, str) and runs_here(endpoint)
    if is_local and not sampling.stream and {*(sampling.extra_body or {})} == {TEMPLATE_KWARGS}:
        return
    if is_local or not (isinstance(endpoint, str) or hasattr(endpoint, "complete")):
        raise InvalidInput(
            f"sampling.extra_body and sampling.stream are for servers; {endpoint!r} is none"
            + (f", and takes {TEMPLATE_KWARGS} alone" if is_local else "")
        )


def _check_extra_body(extra: Any) -> None:
    if not isinstance(extra, dict) or not all(isinstance(key, str) for key in extra):
        raise InvalidInput(
            f"sampling.extra_body must be a dict of request fields, got {extra!r:.200}"
        )
    try:
        json.dumps(extra, allow_nan=False)
        msgspec.json.encode(extra)  # as it is stored and sent: numbers of 64 bits
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(f"sampling.extra_body is not valid JSON: {problem}") from None


base_config = EvalConfig()
"""The defaults, to start from: `replace(base_config, max_samples=100)`."""
