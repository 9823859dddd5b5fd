"""Models whose weights are spread over processes: the whole weights, gathered for an eval.

    sharded = ShardedModel(model, ranks)     # at an eval that is due, in every process
    pool.try_snapshot(sharded, step=40)      # in those that evaluate: a whole copy of the model
    sharded.take_part()                      # in the others, which do not evaluate

FSDP2 (`fully_shard`), FSDP1 and DeepSpeed's ZeRO-3 leave each process a part of the weights, and a
forward pass asks all processes for the others. An eval would therefore have to make the same
number of forward passes everywhere. Instead it gathers the weights once, tensor by tensor, into a
plain copy of the model, and runs that: a GPU holds one whole copy, and while it is filled one
tensor more (one wrapped layer with FSDP1). Nothing is written to the model in training.

Before that the processes exchange whether each of them can: one that cannot is the reason of a
skip, and nobody waits for it. The collectives are the same in all of them, whatever happens.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from heldout._live.isolation import untouched_random_state
from heldout._live.weights import read_sums, sharding_way, sum_bits
from heldout._live.wrappers import is_fsdp1, is_fsdp2
from heldout.errors import InvalidInput
from heldout.training.ranks import Ranks, RanksApart, agree
from heldout.training.reasons import describe

log = logging.getLogger("heldout")

Receive = Callable[[Any, Any], object]
"""Called with a sharded tensor and its whole content, which is valid until it returns."""


class GatherVote(msgspec.Struct):
    """What one process says before weights are gathered."""

    problem: str | None = None
    """Why it cannot take part."""
    needs_all: bool = False
    """Whether it needs frozen weights, too."""
    frozen: str = ""
    """Hash of its part of the frozen weights."""
    gathers: bool = True
    """Whether weights are to be gathered at all: the first process decides."""
    inline: bool = False
    """Whether training waits for the eval: the first process decides."""


class GatherDecision(msgspec.Struct):
    """What the processes do, as the first one has decided."""

    gathers: bool
    everything: bool = False
    """Whether frozen weights are gathered, too."""
    inline: bool = False
    problem: str | None = None
    frozen: list[str] = []
    """Hashes of the frozen weights, by process."""


class ShardedModel:
    """A sharded model at one eval.

    Args:
        model: The model, as it is trained.
        ranks: The processes, each of which makes one of these.
        problem: Why there is no model in this process, where the others may have theirs.
    """

    def __init__(self, model: Any, ranks: Ranks, *, problem: str | None = None) -> None:
        self.model = model
        self.inline = False
        """Whether training waits for the eval, and so the processes that only take part."""
        self._ranks, self._problem = ranks, problem
        self._decision: GatherDecision | None = None
        self._tensors: dict[int, _Sharded] | None = None

    def modules(self) -> Iterator[Any]:
        """Yield its modules, as a torch module does."""
        return iter(()) if self.model is None else self.model.modules()

    def shape_of(self, tensor: Any) -> Any:
        """Return the whole shape of a tensor; None for one that is not sharded."""
        sharded = self._found().get(id(tensor))
        return None if sharded is None else sharded.shape

    def primary(self, tensor: Any) -> Any:
        """Return the tensor that a tied one is gathered with; by default itself."""
        sharded = self._found().get(id(tensor))
        return tensor if sharded is None else sharded.primary

    # --- Agreeing ---

    def agree(self, *, needs_all: bool, known_frozen: list[str] | None) -> GatherDecision:
        """Agree with the other processes to gather the weights now.

        Args:
            needs_all: Whether this one needs frozen weights, too.
            known_frozen: The hashes of the frozen weights that it has; others are gathered again.

        Returns:
            The decision: call `gather` next.

        Raises:
            InvalidInput: One of the processes cannot take part.
        """
        if self._decision is not None:
            raise InvalidInput(self._decision.problem or "the weights were gathered already")
        vote = self._vote()
        vote.needs_all = needs_all
        decision = self._exchange(vote, known_frozen)
        if decision.problem is not None:
            raise InvalidInput(decision.problem)
        if not decision.gathers:
            raise InvalidInput("the first process has no time for an eval")
        return decision

    def gather_weights(
        self, receive: Receive, *, needs_all: bool, known_frozen: list[str] | None
    ) -> list[str]:
        """Gather the weights in all processes, as `agree` and `gather` do."""
        decision = self.agree(needs_all=needs_all, known_frozen=known_frozen)
        self.gather(receive, everything=decision.everything)
        return decision.frozen

    def decline(self, problem: BaseException | None = None) -> None:
        """Have the processes gather nothing, where they have not agreed yet.

        Args:
            problem: Why this one cannot take part, for the others to know.
        """
        if self._decision is None:
            why = self._problem if problem is None else describe(problem)
            vote = GatherVote(problem=why, gathers=False)
            self._exchange(vote, None)

    def within_patience(self, seconds: float | None) -> float | None:
        """Return how long the others may be let wait, `seconds` at most; None for no limit."""
        limits = [limit for limit in (seconds, self._ranks.patience) if limit is not None]
        return min(limits, default=None)

    def close(self) -> None:
        """End the eval in a process that evaluates; the others wait for it."""
        try:
            self.decline()
            if self._decision is not None and self._decision.gathers and self._decision.inline:
                self._ranks.all_gather(b"")
        except RanksApart as problem:
            log.warning("the other processes could not be told that an eval is over: %s", problem)

    def take_part(self) -> None:
        """Take part in a process that does not evaluate, until training may go on."""
        try:
            decision = self._exchange(self._vote(), None)
            if decision.gathers:
                self.gather(lambda tensor, whole: None, everything=decision.everything)
                if decision.inline:
                    self._ranks.all_gather(b"")
        except Exception as problem:  # noqa: BLE001 - training goes on, and the first one skips
            log.warning("an eval of a sharded model: %s", describe(problem))

    def _vote(self) -> GatherVote:
        try:
            if self._problem is not None:
                return GatherVote(problem=self._problem)
            self._check_room()
            return GatherVote(frozen=self._hash_frozen(), inline=self.inline)
        except Exception as problem:  # noqa: BLE001 - the others are told
            return GatherVote(problem=describe(problem))

    # Two collectives decide, whatever happens: every process sends its vote, then all take the
    # decision that the first one made of them. A process with a problem votes, too: one that raised
    # instead would leave the others waiting in a collective until NCCL's timeout kills the
    # training. Only then are weights gathered, and every process makes the same gathers in the same
    # order.

    def _exchange(self, vote: GatherVote, known_frozen: list[str] | None) -> GatherDecision:
        sent = self._ranks.all_gather(msgspec.json.encode(vote))
        votes = [msgspec.json.decode(raw, type=GatherVote) for raw in sent]
        if votes[0].gathers:
            # One that does not gather, and the others waiting for it, would be worse than a skip.
            for v in votes[1:]:
                v.problem = v.problem or (None if v.gathers else "it takes no part in this eval")
        problem = next((v.problem for v in votes if v.problem is not None), None)
        if problem is not None and len(votes) > 1:
            problem = f"rank {[v.problem for v in votes].index(problem)}: {problem}"
        frozen = [v.frozen for v in votes]
        mine = GatherDecision(
            gathers=votes[0].gathers and problem is None,
            everything=any(v.needs_all for v in votes) or frozen != known_frozen,
            inline=votes[0].inline,
            problem=problem,
            frozen=frozen,
        )
        self._decision = agree(self._ranks, mine, GatherDecision)
        return self._decision

    def _check_room(self) -> None:
        """Make sure that there is memory to gather in: the others would wait for this process."""
        import torch

        needed: dict[int, int] = defaultdict(int)
        devices: dict[int, Any] = {}
        for sharded in self._found().values():
            key = id(sharded.tensor if sharded.unit is None else sharded.unit)
            needed[key] += math.prod(sharded.shape) * sharded.tensor.element_size()
            devices[key] = sharded.tensor.device
        if needed:
            largest = max(needed, key=needed.__getitem__)
            torch.empty(needed[largest], dtype=torch.uint8, device=devices[largest])

    def _hash_frozen(self) -> str:
        parts = [s.part() for s in self._found().values() if not s.tensor.requires_grad]
        sums = read_sums(sum_bits([part for part in parts if part is not None]))
        return hashlib.blake2b(repr(sums).encode(), digest_size=8).hexdigest() if sums else ""

    # --- Gathering ---

    def gather(self, receive: Receive, *, everything: bool) -> None:
        """Gather the weights, one after the other. Every process has to, to the end.

        Args:
            receive: Gets each tensor and its whole content.
            everything: Whether to gather frozen weights, too.

        Raises:
            Exception: What `receive` has raised, after the last collective.
        """
        import torch

        failed: Exception | None = None
        sharded = [s for s in self._found().values() if s.primary is s.tensor]
        with torch.no_grad():
            for tensor, whole in _gathered(sharded, everything):
                if failed is None:
                    try:
                        receive(tensor, whole)
                    except Exception as problem:  # noqa: BLE001 - raised below
                        failed = problem
        if failed is not None:
            raise failed

    def _found(self) -> dict[int, _Sharded]:
        if self._tensors is None:
            self._tensors = {id(s.tensor): s for s in _find_tensors(self.model)}
        return self._tensors


def find_sharded(
    get_model: Callable[[], Any], ranks: Ranks, *, was_sharded: bool
) -> ShardedModel | None:
    """Find out whether a model is sharded.

    Args:
        get_model: Returns the model.
        ranks: The processes.
        was_sharded: Whether it was at the last eval, so that the others wait for this process
            even if it has no model now.
    """
    try:
        with untouched_random_state():
            model = get_model()
    except Exception as problem:  # noqa: BLE001 - it is asked again, and the reason becomes a skip
        if not was_sharded:
            return None
        return ShardedModel(None, ranks, problem=describe(problem))
    return None if sharding_way(model) is None else ShardedModel(model, ranks)


# --- What the packages hold ---------------------------------------------------------------------


class _Sharded:
    """A tensor that this process has a part of."""

    def __init__(self, tensor: Any, shape: Any, *, unit: Any = None, primary: Any = None) -> None:
        self.tensor, self.shape = tensor, shape
        self.unit = unit
        """The FSDP1 module that gathers it, together with others."""
        self.primary = tensor if primary is None else primary
        """With FSDP1, tied weights are several tensors, and one of them is gathered."""

    def part(self) -> Any:
        """Return what this process has of it."""
        return getattr(self.tensor, "ds_tensor", self.tensor)


def _find_tensors(model: Any) -> Iterator[_Sharded]:
    """Yield what is sharded, in the same order in every process."""
    units = {id(tensor): s for s in _fsdp1_tensors(model) for tensor in [s.tensor]}
    yield from units.values()
    seen = set(units)
    for module in model.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values()]:
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if hasattr(tensor, "ds_id"):
                if not hasattr(tensor, "ds_shape"):
                    raise InvalidInput(
                        "the weights are spread over several processes by DeepSpeed ZeRO-3, in a "
                        "version of which they cannot be gathered (0.19 is known to work)"
                    )
                yield _Sharded(tensor, tensor.ds_shape)
            elif hasattr(tensor, "placements"):
                yield _Sharded(tensor, tensor.shape)


def _fsdp1_tensors(model: Any) -> Iterator[_Sharded]:
    units = [m for m in model.modules() if is_fsdp1(m)]
    managed = getattr(model, "_is_fsdp_managed_module", False)
    if managed and not is_fsdp1(model) and not is_fsdp2(model):
        raise InvalidInput(
            "this is the module inside of a FullyShardedDataParallel, which alone can gather its "
            "weights: evaluate the outer one"
        )
    for unit in units:
        if unit._handle is None:
            continue
        flat = unit._handle.flat_param
        if flat._params is None:
            raise InvalidInput(
                "FullyShardedDataParallel keeps no parameters of its own without "
                "use_orig_params=True; set that, or use fully_shard"
            )
        for tensor, shape in zip(flat._params, flat._shapes, strict=True):
            yield _Sharded(tensor, shape, unit=unit)
        for tensor, info in zip(flat._shared_params, flat._shared_param_infos, strict=True):
            tied = info.prim_module._parameters[info.prim_param_name]
            shape = flat._shapes[[id(p) for p in flat._params].index(id(tied))]
            if tensor is not tied:
                yield _Sharded(tensor, shape, unit=unit, primary=tied)


def _gathered(sharded: list[_Sharded], everything: bool) -> Iterator[tuple[Any, Any]]:
    """Yield tensors and their whole contents: collectives, one after the other."""
    wanted = [s for s in sharded if everything or s.tensor.requires_grad]
    for unit in {id(s.unit): s.unit for s in wanted if s.unit is not None}.values():
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(unit, recurse=False, writeback=False):
            yield from ((s.tensor, s.tensor.detach()) for s in wanted if s.unit is unit)
    for tensor in [s.tensor for s in wanted if s.unit is None]:
        if hasattr(tensor, "placements"):
            yield tensor, tensor.detach().full_tensor()
        else:
            with _zero3_gathered(tensor):
                yield tensor, tensor.detach()


@contextmanager
def _zero3_gathered(parameter: Any) -> Iterator[None]:
    import deepspeed

    if parameter.ds_status.name == "AVAILABLE":  # small ones stay whole
        yield
        return
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=None):
        yield
