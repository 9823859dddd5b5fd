"""Evaluation in the middle of training without side effects on it.

    with isolated(model, seed=0):
        …                      # generate, score: eval mode, no gradients

The block may draw random numbers, switch modes, edit configs and raise. On every exit all state
listed at `isolated` is restored, so that training ends in the same weights, bit for bit, as if
nothing had run. `heldout.testing.assert_neutral` tests that.

Not covered: in-place writes to weights and buffers, tokens added to a tokenizer, environment
variables, and what a thread does that the block left running. Gradient mode and autocast are per
thread in torch: they hold in the thread that entered. Torch is never imported from here; it counts
only once something else has imported it.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from heldout._live.torch_settings import torch_settings

Restore = Callable[[], object]
"""Restores what one of the `_save_…` functions has saved."""


@contextmanager
def isolated(
    model: Any = None,
    *,
    seed: int | None = None,
    generators: Sequence[Any] = (),
    tokenizers: Sequence[Any] = (),
) -> Iterator[None]:
    """Run the block in eval mode and without gradients, and restore everything afterwards.

    Restored are: random state (python, numpy, torch on every device in use, and `generators`),
    each module's own train/eval flag, attributes, hooks, and what its lists and dicts hold (caches,
    adapters, gradient checkpointing), `requires_grad` of parameters, configs and generation configs
    with all that is in them, attributes of `tokenizers`, autocast, and torch's global settings
    (`heldout._live.torch_settings`).

    Args:
        model: A torch module, or a list or dict of them; anything else is ignored.
        seed: Seed of all random state inside; None leaves it as it is.
        generators: Further random generators that the block may draw from.
        tokenizers: Tokenizers that training uses, too (`tokenizers_of`).
    """
    modules, torch = modules_of(model), _torch()
    # Restored in the opposite order. Random state is saved first and so restored last: what puts
    # modules and settings back may itself draw numbers. Modules are put back before settings and
    # autocast are, so under the settings that the eval ran with.
    with _restoring() as restores:
        restores += _save_random_state()
        restores += [_save_generator(generator) for generator in generators]
        if torch is not None:
            restores += _save_torch_settings(torch)
            restores += _save_autocast(torch)
        restores += _save_modules(modules)
        seen: dict[int, Any] = {}
        for tokenizer in tokenizers:
            restores.append(_save_contents(_containers_in(tokenizer, seen, is_config=True)))
        if seed is not None:
            _seed_everything(seed)
            for number, generator in enumerate(generators):
                _seed_generator(generator, np.random.SeedSequence(seed, spawn_key=(number,)))
        if torch is not None and _in_autocast(torch):
            # The caller's autocast region caches casts of weights until it ends. One made here
            # would outlive the block: without a graph, so that the weight gets no gradient (seen in
            # torch 2.9), or of weights that were only swapped in for the eval. Clearing that cache
            # is no solution: a weight that is cast twice sums its gradients in another precision.
            torch.set_autocast_cache_enabled(False)
            # A region made earlier and entered in here (accelerate has one around `forward`) turns
            # the cache on. Only casts of what requires gradients go there.
            for parameter in _parameters(modules):
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.requires_grad_(False)
        with eval_mode(modules), nullcontext() if torch is None else torch.no_grad():
            yield


@contextmanager
def untouched_random_state(*, seed: int | None = None) -> Iterator[None]:
    """Restore the global random state of python, numpy and torch (every device) afterwards.

    Args:
        seed: Seed of that state inside, so that an environment or a policy that draws from it
            repeats in every evaluation; None leaves it as it is.
    """
    with _restoring() as restores:
        restores += _save_random_state()
        if seed is not None:
            _seed_everything(seed)
        yield


_is_background: ContextVar[bool] = ContextVar("heldout_is_background", default=False)
"""Of this thread, and of the event loop that it starts in another one."""


class NeedsTrainerThread(Exception):
    """Something global to the process would have to change while another thread trains.

    In the thread that trains it can be done.
    """


@contextmanager
def background_thread() -> Iterator[None]:
    """Mark this thread as one that evaluates while another trains.

    `isolated` would undo random draws that training made meanwhile, so whatever has to change
    global state raises NeedsTrainerThread here.
    """
    before = _is_background.set(True)
    try:
        with thread_local_capture_mode():
            yield
    finally:
        _is_background.reset(before)


def is_background_thread() -> bool:
    """Return whether this thread evaluates while another one trains."""
    return _is_background.get()


@contextmanager
def thread_local_capture_mode() -> Iterator[None]:
    """CUDA calls of this thread do not break a CUDA graph that another thread is capturing.

    While a thread captures in torch's default mode ("global"), CUDA refuses all other threads the
    calls that could be unsafe in a capture (waiting for an event, allocating memory), and the
    refusal invalidates the capture. That does not apply to a thread whose own mode is
    thread-local: only its own captures count there. The mode is put back at the end.
    """
    torch = _torch()
    if torch is None or torch.version.cuda is None or not torch.cuda.is_initialized():
        yield
        return
    before = _exchange_capture_mode(_THREAD_LOCAL)
    try:
        yield
    finally:
        _exchange_capture_mode(before)


_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def _exchange_capture_mode(mode: int) -> int:
    """Set this thread's mode, and return the one before."""
    # Torch has loaded the driver's library, but has no binding for this function.
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    value = ctypes.c_int(mode)
    if failed := driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(value)):
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode failed with CUDA error {failed}")
    return value.value


@contextmanager
def refusing_draws() -> Iterator[None]:
    """Refuse to draw from torch's global random state, in this thread.

    NeedsTrainerThread is raised before anything is drawn. Drawing from a generator that is passed
    explicitly is allowed.
    """
    torch = _torch()
    if torch is None:
        yield
        return
    with _guard(torch)():
        yield


@cache
def _guard(torch: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            is_random = torch.Tag.nondeterministic_seeded in operator.tags
            if is_random and _draws(operator, args, kwargs):
                raise NeedsTrainerThread(
                    f"{operator} draws from the random state that training draws from"
                )
            return operator(*args, **kwargs)

    return Refuse


def _draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers; attention is tagged so even without dropout."""
    if kwargs.get("generator") is not None:
        return False
    names = [argument.name for argument in operator._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return bool(args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))


@contextmanager
def eval_mode(modules: Sequence[Any]) -> Iterator[None]:
    """Switch modules to eval mode and gradients off, and restore each module's own flag.

    A frozen batch norm inside a network in training stays frozen.
    """
    flags = [module.training for module in modules]
    try:
        _set_training(modules, [False] * len(modules))
        with sys.modules["torch"].no_grad() if modules else nullcontext():
            yield
    finally:
        _set_training(modules, flags)


@contextmanager
def modules_put_back(modules: Sequence[Any]) -> Iterator[None]:
    """Restore what modules and their configs hold: switches, adapters, generation configs."""
    with _restoring() as restores:
        restores += _save_modules(modules)
        yield


def wait_for_device(model: Any) -> None:
    """Wait until a GPU has finished what this thread enqueued."""
    torch = _torch()
    for device in {p.device for p in _parameters(modules_of(model)) if p.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


def modules_of(model: Any) -> list[Any]:
    """List every torch module of a model, or of a list or dict of models, once."""
    torch = _torch()
    if model is None or torch is None:
        return []
    modules: dict[int, Any] = {}
    if isinstance(model, Mapping | list | tuple | set | frozenset):
        # Not any iterable: a dataset or a stream would be read here.
        for part in model.values() if isinstance(model, Mapping) else model:
            modules.update((id(module), module) for module in modules_of(part))
    elif callable(getattr(model, "modules", None)) and not isinstance(model, type):
        listed = model.modules()
        parts: Iterable[Any] = listed if isinstance(listed, Iterable) else ()
        modules = {id(part): part for part in parts if isinstance(part, torch.nn.Module)}
    return list(modules.values())


def held_by(function: Any) -> tuple[list[Any], list[Any]]:
    """Find the torch modules and random generators reachable from a function, such as a policy."""
    torch, values = _torch(), list(reachable_objects(function))
    modules = [] if torch is None else [v for v in values if issubclass(type(v), torch.nn.Module)]
    return modules_of(modules), [value for value in values if _is_generator(value, torch)]


def tokenizers_of(function: Any) -> list[Any]:
    """Find the transformers tokenizers that a function or an object can reach."""
    base = sys.modules.get("transformers.tokenization_utils_base")
    kind = getattr(base, "PreTrainedTokenizerBase", None)
    if kind is None:
        return []
    return [value for value in reachable_objects(function) if issubclass(type(value), kind)]


def reachable_objects(function: Any) -> Iterator[Any]:
    """Yield every object that a function or object closes over, is bound to or reads from modules.

    Containers of more than a thousand values are data and are not searched.
    """
    torch, source = _torch(), getattr(function, "__module__", None)
    waiting, seen = deque([function]), set[int]()
    while waiting and len(seen) < 10_000:
        value = waiting.popleft()
        kind = type(value)  # not isinstance: a proxy's __class__ may run code
        if id(value) in seen or issubclass(kind, type | ModuleType):
            continue
        seen.add(id(value))
        yield value
        if torch is not None and issubclass(kind, torch.nn.Module):
            continue  # `modules_of` lists its parts
        if issubclass(kind, FunctionType):
            waiting += _used_by(value)
        elif gc.is_tracked(value) and _size(value) <= 1_000:
            waiting += gc.get_referents(value)
            if kind.__module__ == source:  # its methods may read globals
                waiting += [item for item in vars(kind).values() if isinstance(item, FunctionType)]


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict | list | tuple | set | frozenset | deque) else 0


def _used_by(function: FunctionType) -> list[Any]:
    """List what a function holds, and the globals that its code may read."""
    values = [function.__closure__, function.__defaults__, function.__kwdefaults__, vars(function)]
    codes, namespaces = [function.__code__], [function.__globals__]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in code.co_names:
            for namespace in namespaces:
                if isinstance(value := namespace.get(name), ModuleType):
                    if not any(vars(value) is known for known in namespaces):
                        namespaces.append(vars(value))
                elif value is not None:
                    values.append(value)
    return values


def _set_training(modules: Sequence[Any], flags: Sequence[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if module.training is not flag:
            if "training" in vars(module):
                # Module.__setattr__ would look for parameters first, and this runs at every step of
                # an environment.
                vars(module)["training"] = flag
            else:  # compiled and scripted modules store it elsewhere
                module.training = flag


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") else None  # another thread may just be importing it


# --- Restoring ----------------------------------------------------------------------------------


@contextmanager
def _restoring() -> Iterator[list[Restore]]:
    """Run all restores that were added to the list on exit, the last first, whatever happens.

    One that fails is raised, whatever the block raised: a training run whose state has changed is
    worse than a failed eval.
    """
    restores: list[Restore] = []
    with ExitStack() as stack:
        try:
            yield restores
        finally:
            for restore in restores:
                stack.callback(restore)


def _save_setting(get: Callable[[], Any], put: Callable[[Any], object]) -> list[Restore]:
    try:
        was = get()
    except RuntimeError:
        return []  # torch refuses to read a setting that was made by its old and its new name

    def restore() -> None:
        try:
            if get() == was:
                return
        except RuntimeError:
            pass
        put(was)

    return [restore]


# --- Random state -------------------------------------------------------------------------------

_LAZY_DEVICES = ("cuda", "xpu")
"""Devices that torch initializes on first use; reading their state would initialize them."""


def _save_random_state() -> list[Restore]:
    restores: list[Restore] = [
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state(legacy=False)),
    ]
    torch = _torch()
    if torch is None:
        return restores
    restores.append(partial(torch.random.set_rng_state, torch.random.get_rng_state()))
    if torch.backends.mps.is_available():
        restores.append(partial(torch.mps.set_rng_state, torch.mps.get_rng_state()))
    for devices in _lazy_devices(torch):
        if devices.is_initialized():
            for generator in devices.default_generators:
                restores.append(partial(generator.set_state, generator.get_state()))
        else:
            restores.append(_save_pending_seeds(devices))
    return restores


def _lazy_devices(torch: Any) -> list[Any]:
    modules = [getattr(torch, kind, None) for kind in _LAZY_DEVICES]
    return [devices for devices in modules if hasattr(devices, "_lazy_seed_tracker")]


def _save_pending_seeds(devices: Any) -> Restore:
    """Save the seeds that devices apply when they are initialized."""
    tracked = vars(devices._lazy_seed_tracker)
    pending = dict(tracked)

    def restore() -> None:
        if not devices.is_initialized():
            tracked.update(pending)
            return
        # Initialized inside: as it would have been later, at random or by those seeds.
        for generator in devices.default_generators:
            generator.seed()
        for call in pending["call_order"]:
            if call is not None:
                call[0]()

    return restore


def _is_generator(value: Any, torch: Any) -> bool:
    kind = type(value)
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom)  # it has no state
    if torch is not None and issubclass(kind, torch.Generator):
        return True
    return issubclass(kind, np.random.Generator | np.random.RandomState) or _lacks_generator(value)


def _lacks_generator(value: Any) -> bool:
    """Whether it is a Gymnasium space that will make its generator when it first draws."""
    gymnasium = sys.modules.get("gymnasium")
    spaces = getattr(gymnasium, "Space", None)
    return spaces is not None and issubclass(type(value), spaces) and value._np_random is None


def _save_generator(generator: Any) -> Restore:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state(legacy=False))
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if _lacks_generator(generator):
        return partial(setattr, generator, "_np_random", None)
    return partial(generator.set_state, generator.get_state())


def _seed_generator(generator: Any, sequence: np.random.SeedSequence) -> None:
    word = int(sequence.generate_state(1)[0])
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(sequence).state
    elif isinstance(generator, np.random.RandomState | random.Random):
        generator.seed(word)
    elif _lacks_generator(generator):
        generator._np_random = np.random.default_rng(sequence)
    else:
        generator.manual_seed(word)


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = _torch()
    if torch is not None:
        torch.random.default_generator.manual_seed(seed % 2**64)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(seed % 2**64)
        for devices in _lazy_devices(torch):
            devices.manual_seed_all(seed % 2**64)


# --- Torch's settings ---------------------------------------------------------------------------


def _save_torch_settings(torch: Any) -> list[Restore]:
    settings = reversed(torch_settings(torch).values())  # the last is restored first
    restores = [restore for get, put in settings for restore in _save_setting(get, put)]
    hooks = vars(torch.nn.modules.module)
    containers = [
        value
        for name, value in hooks.items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    return [*restores, _save_contents(containers)]


_AUTOCAST_ON = ("cpu", "cuda", "mps", "xpu")


def _save_autocast(torch: Any) -> list[Restore]:
    restores = _save_setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    for device in _AUTOCAST_ON:
        for get, put in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        ):
            restores += _save_setting(partial(get, device), partial(put, device))
    return restores


def _in_autocast(torch: Any) -> bool:
    """Whether a cast made now may outlive the block.

    Regions count whether on or off: one that is off may be nested in one that is on, and shares its
    cache.
    """
    torch.autocast_increment_nesting()
    entered = torch.autocast_decrement_nesting()
    return bool(entered) or any(torch.is_autocast_enabled(device) for device in _AUTOCAST_ON)


# --- Modules and their configs ------------------------------------------------------------------


def _save_modules(modules: Sequence[Any]) -> list[Restore]:
    flags = [(parameter, parameter.requires_grad) for parameter in _parameters(modules)]
    containers: list[Any] = []
    configs: dict[int, Any] = {}
    for module in modules:
        held = vars(module)
        containers.append(held)
        # Caches, hooks, adapters; and parameters, buffers and modules, which may be replaced.
        containers += [value for value in held.values() if isinstance(value, _CONTAINERS)]
        for config in (held.get("config"), held.get("generation_config")):
            if config is not None:
                containers += _containers_in(config, configs, is_config=True)
    return [partial(_restore_requires_grad, flags), _save_contents(containers)]


def _parameters(modules: Sequence[Any]) -> Iterator[Any]:
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                yield parameter


def _restore_requires_grad(kept: Iterable[tuple[Any, bool]]) -> None:
    for parameter, flag in kept:
        if parameter.requires_grad is not flag:
            parameter.requires_grad_(flag)


def _containers_in(value: Any, seen: dict[int, Any], *, is_config: bool = False) -> list[Any]:
    """List the dicts and lists of a config: its attributes, and those in configs within it."""
    if isinstance(value, dict | list):
        held: Any = value
    elif hasattr(value, "__dict__") and (is_config or hasattr(type(value), "to_dict")):
        held = vars(value)
    else:
        return []
    if id(value) in seen or isinstance(value, type):
        return []
    seen[id(value)] = value
    inner = held.values() if isinstance(held, dict) else held
    return [held, *(found for part in inner for found in _containers_in(part, seen))]


_CONTAINERS = (dict, list, set, deque)


def _save_contents(containers: Iterable[Any]) -> Restore:
    """Save what containers hold. The restore writes only to those that have changed."""
    # Not a restore each: a model has ten thousands of them, most of them empty.
    kept = [(held, (dict if isinstance(held, dict) else list)(held)) for held in containers]

    def restore() -> None:
        problems = []
        for held, before in reversed(kept):
            try:
                if held or before:
                    _refill(held, before)
            except Exception as problem:  # noqa: BLE001 - raised once the rest is restored
                problems.append(problem)
        if problems:
            raise problems[0]

    return restore


def _refill(held: Any, before: Any) -> None:
    if isinstance(held, dict):
        now = dict(held)  # not `held[key]`: DeepSpeed's dicts gather a parameter that is asked for
        if list(now) == list(before):
            changed = {key: value for key, value in now.items() if before[key] is not value}
            held.update({key: before[key] for key in changed})
            return
    elif isinstance(held, set):
        if held == set(before):
            return
    elif len(held) == len(before) and all(map(is_, held, before)):
        return
    held.clear()
    held.update(before) if isinstance(held, dict | set) else held.extend(before)
