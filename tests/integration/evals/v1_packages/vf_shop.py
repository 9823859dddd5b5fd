"""A taskset whose rollouts have a tool server each, with a state that the reward reads."""

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


class ShopTask(vf.Task[vf.TaskData, Basket, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [BasketTools(vf.ToolsetConfig())]

    @vf.reward
    async def bought(self, trace: vf.Trace) -> float:
        return float(trace.state.items == ("apple",))


class ShopTaskset(vf.Taskset[ShopTask]):
    def load(self) -> Iterator[ShopTask]:
        yield ShopTask(vf.TaskData(name="apple", prompt="Buy an apple."), self.config.task)


if __name__ == "__main__":
    BasketTools.run()
