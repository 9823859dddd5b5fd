"""Which training steps an eval is due at. Knows step numbers only, so every process agrees."""

from __future__ import annotations


class EvalCadence:
    """Finds the steps at which an eval is due, as a training run counts up.

    Args:
        every_steps: Steps between evals; 0: none is due.
        at_start: Whether step 0 is due, too.
    """

    def __init__(self, every_steps: int, *, at_start: bool) -> None:
        self.every_steps = every_steps
        self.last_due: int | None = None
        """The last step that `reach` found due."""
        self._at_start = at_start
        self._reached: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether an eval is due at a step.

        If the counter jumps, an eval is due once it has passed a multiple of `every_steps` since
        the last step that was reached. A step that was found due is not due again.
        """
        if self.every_steps <= 0 or step < 0 or step == self.last_due:
            return False
        if step == 0:
            return self._at_start
        before = step - 1 if self._reached is None or self._reached >= step else self._reached
        return step // self.every_steps > before // self.every_steps

    def reach(self, step: int) -> bool:
        """Note that training has reached a step; return whether an eval is due."""
        is_due = self.is_due(step)
        self._reached = step
        if is_due:
            self.last_due = step
        return is_due

    def begin(self, step: int) -> None:
        """Begin at a step; what was due before it is not."""
        self._reached = step

    def go_back(self, step: int) -> bool:
        """Return whether the counter goes back to this step; then steps may be due again."""
        goes_back = self._reached is not None and step < self._reached
        if goes_back:
            self.last_due = None
        return goes_back
