"""A taskset with tool servers: one of each rollout with a state, one that all share."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["ShopTaskset"]


class Basket(vf.State):
    items: tuple[str, ...] = ()


class BasketTools(vf.Toolset[vf.ToolsetConfig, Basket]):
    TOOL_PREFIX = "basket"

    @vf.tool
    async def put(self, item: str) -> str:
        """Put an item into the basket."""
        self.state.items = (*self.state.items, item)
        return f"{len(self.state.items)} items"


class PriceTools(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = "prices"

    @vf.tool
    async def price(self, item: str) -> str:
        """Look up a price."""
        return {"apple": "0.5"}[item]


class ShopTask(vf.Task[vf.TaskData, Basket, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [BasketTools(vf.ToolsetConfig())]

    @vf.reward
    async def bought(self, trace: vf.Trace) -> float:
        return float(trace.state.items == ("apple",))


class ShopTaskset(vf.Taskset[ShopTask]):
    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        return [PriceTools(vf.SharedToolsetConfig())]

    def load(self) -> Iterator[ShopTask]:
        yield ShopTask(vf.TaskData(name="apple", prompt="Buy an apple."), self.config.task)


if __name__ == "__main__":
    import os

    # One module, two servers: a server's config says which.
    (PriceTools if "colocated" not in os.environ["VF_CONFIG"] else BasketTools).run()
