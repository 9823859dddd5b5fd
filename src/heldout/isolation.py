"""An evaluation in the middle of training, which the training does not notice.

    with isolated(model, seed=0):
        …                      # generate, score, whatever: eval mode, no gradients

What is inside may draw random numbers, switch modes, edit configs and raise. On every way out,
all that `isolated` knows of is as it was, so that training goes on to the same weights, bit for
bit, as if nothing had run. `heldout.testing.assert_neutral` puts that to the test.

Not covered is what is written into weights and buffers in place, and hooks that stay registered.
Gradient mode and autocast belong to a thread in torch: they hold in the thread that entered.
Torch counts only where it has been imported, and is never imported from here.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

Restore = Callable[[], object]


@contextmanager
def isolated(
    model: Any = None, *, seed: int | None = None, generators: Sequence[Any] = ()
) -> Iterator[None]:
    """Run what is inside in eval mode and without gradients, and leave no trace of it.

    `model` is a torch module, or a list or dict of them; what is none (a plain function, a client)
    is left alone. With `seed`, random state inside starts from it. Put back are: random state
    (python, numpy, torch on every device in use, and `generators`), each module's own train/eval
    flag, gradient checkpointing, `forward` and adapters, `requires_grad` of parameters, configs and
    generation configs with all that is in them, autocast, and torch's global settings.
    """
    modules, torch = modules_of(model), _torch()
    with _put_back() as restores:
        restores += _random_state()
        restores += [_generator_state(generator) for generator in generators]
        if torch is not None:
            restores += _torch_settings(torch)
            restores += _autocast(torch)
        restores += _on_modules(modules)
        if seed is not None:
            _seed_everything(seed)
            for number, generator in enumerate(generators):
                _seed_generator(generator, np.random.SeedSequence(seed, spawn_key=(number,)))
        if torch is not None and _in_autocast(torch):
            # A caller's autocast region keeps casts of weights until it ends. One made here would
            # outlive us: without a graph, so that the weight gets no gradient (seen in torch 2.9),
            # or of weights that were only swapped in for the eval. Emptying that cache is no way
            # out: a weight that is cast twice has its gradients added up in another precision.
            torch.set_autocast_cache_enabled(False)
            # A region made earlier and entered in here (accelerate puts one around `forward`) has
            # the cache on. Only what requires gradients goes there.
            for parameter in _parameters(modules):
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.requires_grad_(False)
        with eval_mode(modules), nullcontext() if torch is None else torch.no_grad():
            yield


@contextmanager
def untouched_random_state(*, seed: int | None = None) -> Iterator[None]:
    """Global random state of python, numpy and torch (every device), put back at the end.

    With `seed`, what runs inside starts from that seed, so that an environment or a policy that
    draws from global state is the same in every evaluation.
    """
    with _put_back() as restores:
        restores += _random_state()
        if seed is not None:
            _seed_everything(seed)
        yield


_this_thread = threading.local()


class NotBeside(Exception):
    """Something that is global to the process would have to be changed, while training goes on in
    another thread. In the thread that trains it can be done."""


@contextmanager
def beside_training() -> Iterator[None]:
    """What is inside runs in a thread of its own while another one trains, so that `isolated` would
    put back random numbers that training has drawn meanwhile. What has to change anything global
    raises NotBeside in here."""
    before = is_beside_training()
    _this_thread.beside = True
    try:
        with thread_local_capture_mode():
            yield
    finally:
        _this_thread.beside = before


def is_beside_training() -> bool:
    return getattr(_this_thread, "beside", False)


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
    """Torch's global random state is not drawn from in here, in this thread: NotBeside, before
    anything is drawn. With a generator of one's own, anything may be."""
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
            given = kwargs or {}
            if torch.Tag.nondeterministic_seeded in operator.tags and _draws(operator, args, given):
                raise NotBeside(f"{operator} draws from the random state that training draws from")
            return operator(*args, **given)

    return Refuse


def _draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Attention counts among what is random, and is not, without dropout."""
    if kwargs.get("generator") is not None:
        return False
    names = [argument.name for argument in operator._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return bool(args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))


@contextmanager
def eval_mode(modules: Sequence[Any]) -> Iterator[None]:
    """Modules (see `modules_of`) in eval mode and without gradients; then each flag as it was.

    Each module's own: a frozen batch norm inside a network in training stays frozen.
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
    """What these modules and their configs hold is, in the end, what it was: switches, adapters,
    generation configs. Nothing that is not theirs is looked at."""
    with _put_back() as restores:
        restores += _on_modules(modules)
        yield


def wait_for_device(model: Any) -> None:
    """Until a GPU has done what this thread has asked of it."""
    torch = _torch()
    for device in {p.device for p in _parameters(modules_of(model)) if p.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


def modules_of(model: Any) -> list[Any]:
    """Every torch module in a model, or in a list or dict of models, once; none in others."""
    torch = _torch()
    if model is None or torch is None:
        return []
    found: dict[int, Any] = {}
    if isinstance(model, Mapping | list | tuple | set | frozenset):
        # Not any iterable: a dataset or a stream would be read here.
        for part in model.values() if isinstance(model, Mapping) else model:
            found.update((id(module), module) for module in modules_of(part))
    elif callable(getattr(model, "modules", None)) and not isinstance(model, type):
        listed = model.modules()
        parts: Iterable[Any] = listed if isinstance(listed, Iterable) else ()
        found = {id(part): part for part in parts if isinstance(part, torch.nn.Module)}
    return list(found.values())


_MOST_SEARCHED, _LARGE = 10_000, 1_000


def held_by(function: Any) -> tuple[list[Any], list[Any]]:
    """The torch modules that a function reaches, and the objects that it may draw numbers from."""
    torch, found = _torch(), list(reached(function))
    modules = [] if torch is None else [m for m in found if issubclass(type(m), torch.nn.Module)]
    return modules_of(modules), [value for value in found if _is_generator(value, torch)]


def reached(function: Any) -> Iterator[Any]:
    """What a function closes over, is bound to or reads by name from modules, and what is in there.

    Containers of more than a thousand values are data and are not searched.
    """
    torch, home = _torch(), getattr(function, "__module__", None)
    waiting, seen = deque([function]), set[int]()
    while waiting and len(seen) < _MOST_SEARCHED:
        value = waiting.popleft()
        kind = type(value)  # not isinstance: what pretends to be something else may run code
        if id(value) in seen or issubclass(kind, type | ModuleType):
            continue
        seen.add(id(value))
        yield value
        if torch is not None and issubclass(kind, torch.nn.Module):
            continue  # it lists its parts itself
        if issubclass(kind, FunctionType):
            waiting += _used_by(value)
        elif gc.is_tracked(value) and _size(value) <= _LARGE:
            waiting += gc.get_referents(value)
            if kind.__module__ == home:  # its methods may read what they use from globals
                waiting += [each for each in vars(kind).values() if isinstance(each, FunctionType)]


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict | list | tuple | set | frozenset | deque) else 0


def _used_by(function: FunctionType) -> list[Any]:
    """What a function holds, and what its code may read by name of its module and of others."""
    found = [function.__closure__, function.__defaults__, function.__kwdefaults__, vars(function)]
    codes, namespaces = [function.__code__], [function.__globals__]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in code.co_names:
            for namespace in namespaces:
                if isinstance(value := namespace.get(name), ModuleType):
                    if not any(vars(value) is known for known in namespaces):
                        namespaces.append(vars(value))
                elif value is not None:
                    found.append(value)
    return found


def _set_training(modules: Sequence[Any], flags: Sequence[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if module.training is not flag:
            if "training" in vars(module):
                # Past Module.__setattr__, which looks for parameters first: this is done at every
                # step of an environment.
                vars(module)["training"] = flag
            else:  # compiled and scripted modules keep it elsewhere
                module.training = flag


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") else None  # another thread may just be importing it


# --- Putting back -------------------------------------------------------------------------------


@contextmanager
def _put_back() -> Iterator[list[Restore]]:
    """A list of things to do on the way out: all of them, the last first, whatever happens."""
    restores: list[Restore] = []
    try:
        yield restores
    except BaseException as raised:
        if (problem := _do_all(restores)) is None:
            raise
        if isinstance(problem, Exception) and not isinstance(raised, Exception):
            # A Ctrl-C stays one, or it would be taken for an eval that failed, and be lost.
            raised.add_note(f"and not everything could be put back: {problem!r}")
            raise
        # That training is not what it was is worse than an eval that failed.
        raise problem from raised
    if (problem := _do_all(restores)) is not None:
        raise problem


def _do_all(restores: list[Restore]) -> BaseException | None:
    """What went wrong, if anything did: what stops a program before anything else."""
    problems: list[BaseException] = []
    while restores:
        try:
            restores.pop()()
        except BaseException as problem:  # noqa: BLE001 - raised by the caller, after the rest
            problems.append(problem)
    problems.sort(key=lambda problem: isinstance(problem, Exception))
    for other in problems[1:]:
        problems[0].add_note(f"nor could this be put back: {other!r}")
    return problems[0] if problems else None


def _setting(get: Callable[[], Any], put: Callable[[Any], object]) -> list[Restore]:
    try:
        was = get()
    except RuntimeError:
        return []  # of some settings torch does not tell, where they were made in two ways

    def restore() -> None:
        try:
            if get() == was:
                return
        except RuntimeError:
            pass
        put(was)

    return [restore]


# --- Random state -------------------------------------------------------------------------------

_STARTED_LATE = ("cuda", "xpu")
"""Kinds of devices that torch starts when they are first used; asking them would start them."""


def _random_state() -> list[Restore]:
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
    for devices in _late(torch):
        if devices.is_initialized():
            for generator in devices.default_generators:
                restores.append(partial(generator.set_state, generator.get_state()))
        else:
            restores.append(_unstarted(devices))
    return restores


def _late(torch: Any) -> list[Any]:
    found = [getattr(torch, kind, None) for kind in _STARTED_LATE]
    return [each for each in found if hasattr(each, "_lazy_seed_tracker")]


def _unstarted(devices: Any) -> Restore:
    """Devices that are not started keep seeds for later: those they have now, and no others."""
    kept = vars(devices._lazy_seed_tracker)
    waiting = dict(kept)

    def restore() -> None:
        if not devices.is_initialized():
            kept.update(waiting)
            return
        # Started inside: as they would have been at their start, at random or by those seeds.
        for generator in devices.default_generators:
            generator.seed()
        for call in waiting["call_order"]:
            if call is not None:
                call[0]()

    return restore


def _is_generator(value: Any, torch: Any) -> bool:
    kind = type(value)
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom)  # it has no state
    if torch is not None and issubclass(kind, torch.Generator):
        return True
    return issubclass(kind, np.random.Generator | np.random.RandomState) or _draws_later(value)


def _draws_later(value: Any) -> bool:
    """A space of Gymnasium's that has drawn nothing makes its generator when it first does."""
    gymnasium = sys.modules.get("gymnasium")
    spaces = getattr(gymnasium, "Space", None)
    return spaces is not None and issubclass(type(value), spaces) and value._np_random is None


def _generator_state(generator: Any) -> Restore:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state(legacy=False))
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if _draws_later(generator):
        return partial(setattr, generator, "_np_random", None)
    return partial(generator.set_state, generator.get_state())


def _seed_generator(generator: Any, sequence: np.random.SeedSequence) -> None:
    word = int(sequence.generate_state(1)[0])
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(sequence).state
    elif isinstance(generator, np.random.RandomState | random.Random):
        generator.seed(word)
    elif _draws_later(generator):
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
        for devices in _late(torch):
            devices.manual_seed_all(seed % 2**64)


# --- Torch's settings ---------------------------------------------------------------------------


def _torch_settings(torch: Any) -> list[Restore]:
    backends, kernels = torch.backends, torch.backends.cuda
    # Two ways to say one thing, and with both torch does not tell any more: the older is put back
    # first (so it stands last), and then the newer, which the older changes too.
    settings = [
        _of(owner, "fp32_precision")
        for owner in (
            backends,
            backends.cuda.matmul,
            backends.cudnn,
            getattr(backends.cudnn, "conv", None),
            getattr(backends.cudnn, "rnn", None),
            getattr(backends.mkldnn, "matmul", None),
        )
        if hasattr(owner, "fp32_precision")
    ]
    settings += [
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),  # sums depend on it
        (partial(_determinism, torch), lambda was: torch.use_deterministic_algorithms(**was)),
        _of(backends.cudnn, "deterministic"),
        _of(backends.cudnn, "benchmark"),
        (kernels.flash_sdp_enabled, kernels.enable_flash_sdp),
        (kernels.mem_efficient_sdp_enabled, kernels.enable_mem_efficient_sdp),
        (kernels.math_sdp_enabled, kernels.enable_math_sdp),
        (kernels.cudnn_sdp_enabled, kernels.enable_cudnn_sdp),
    ]
    if torch.cuda.is_initialized():
        settings.append((torch.cuda.current_device, torch.cuda.set_device))
    return [restore for get, put in settings for restore in _setting(get, put)]


def _of(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _determinism(torch: Any) -> dict[str, bool]:
    return {
        "mode": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


_AUTOCAST_ON = ("cpu", "cuda", "mps", "xpu")


def _autocast(torch: Any) -> list[Restore]:
    restores = _setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    for device in _AUTOCAST_ON:
        for get, put in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        ):
            restores += _setting(partial(get, device), partial(put, device))
    return restores


def _in_autocast(torch: Any) -> bool:
    """Whether a cast made now may outlive us. Regions count, on or off: one that is off may lie
    in one that is on, and whose cache it shares."""
    torch.autocast_increment_nesting()
    entered = torch.autocast_decrement_nesting()
    return bool(entered) or any(torch.is_autocast_enabled(device) for device in _AUTOCAST_ON)


# --- What modules and their configs hold --------------------------------------------------------

_SWITCHES = (
    "forward",
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
    "config",
    "generation_config",
    "active_adapter",  # peft's, as the next two
    "_active_adapter",
    "_disable_adapters",
)


def _on_modules(modules: Sequence[Any]) -> list[Restore]:
    torch = _torch()
    switches: list[tuple[dict[str, Any], dict[str, Any]]] = []
    flags = [(parameter, parameter.requires_grad) for parameter in _parameters(modules)]
    restores: list[Restore] = [
        partial(_put_switches, switches),
        partial(_put_requires_grad, flags),
    ]
    seen: set[int] = set()
    for module in modules:
        held = vars(module)
        switches.append((held, {name: held[name] for name in _SWITCHES if name in held}))
        for config in (held.get("config"), held.get("generation_config")):
            if config is not None and id(config) not in seen:
                restores += _contents(config, seen, at_least_one=True)
        if held.get("_non_persistent_buffers_set"):
            # What a forward pass works out as it goes: frequencies of rotary embeddings that are
            # stretched to the longest text seen so far, and would stay so for the shorter ones.
            restores.append(_refill(held["_buffers"]))
            restores.append(_refill(held, only=(int, float, torch.Tensor)))
    return restores


def _put_switches(kept: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for held, values in kept:
        for name in _SWITCHES:
            if name in held and name not in values:
                del held[name]
        held.update(values)


def _parameters(modules: Sequence[Any]) -> Iterator[Any]:
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                yield parameter


def _put_requires_grad(kept: Iterable[tuple[Any, bool]]) -> None:
    for parameter, flag in kept:
        if parameter.requires_grad is not flag:
            parameter.requires_grad_(flag)


def _contents(value: Any, seen: set[int], *, at_least_one: bool = False) -> list[Restore]:
    """A config's attributes, and the configs, dicts and lists in it, down to plain values."""
    if isinstance(value, dict | list):
        held: Any = value
    elif hasattr(value, "__dict__") and (at_least_one or hasattr(type(value), "to_dict")):
        held = vars(value)
    else:
        return []
    if id(value) in seen or isinstance(value, type):
        return []
    seen.add(id(value))
    restores = [_refill(held)]
    for inner in held.values() if isinstance(held, dict) else held:
        restores += _contents(inner, seen)
    return restores


def _refill(held: Any, only: Any = object) -> Restore:
    """The same dict or list with the same things in it, at least as far as they are `only`."""
    if isinstance(held, list):
        items = list(held)

        def refill_list() -> None:
            held[:] = items

        return refill_list
    entries = {key: value for key, value in held.items() if isinstance(value, only)}

    def refill() -> None:
        for key in [key for key, value in held.items() if isinstance(value, only)]:
            if key not in entries:
                del held[key]
        held.update(entries)

    return refill
