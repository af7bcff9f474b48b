"""The ticker: losses awaited a few steps late, so devices never wait for the host."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from jaxdist.core.errors import FatalError
from jaxdist.train.callbacks import PausingCallback, TrainingCallback
from jaxdist.train.metrics import Recorder
from jaxdist.train.run_schedule import RunSchedule

MAX_IN_FLIGHT_STEPS: Final = 2
"""Steps handed to the devices before the loss of an earlier one is awaited."""

_RATE_BLOCK: Final = 4096
"""Learning rates read at once: a step's own would cost more than the step's line."""


class LossQueue:
    """Awaits losses a few steps late, so that the devices never wait for the host."""

    def __init__(
        self,
        run_schedule: RunSchedule,
        recorder: Recorder,
        callback: TrainingCallback,
        learning_rates: Callable[[np.ndarray], Any],
        skipped_steps: int,
    ) -> None:
        self.run_schedule, self.recorder, self.callback = (
            run_schedule,
            recorder,
            callback,
        )
        self.first_step_s = 0.0
        self._learning_rates, self._block, self._table = learning_rates, -1, np.zeros(0)
        self._skipped_steps, self._consecutive_skips = skipped_steps, 0
        self._pending: deque[tuple[int, jax.Array]] = deque()
        self._last = time.perf_counter()

    @property
    def devices_idle(self) -> bool:
        """Whether the devices have done all that they were handed."""
        pending: Any = [loss for _, loss in self._pending]
        return all(loss.is_ready() for loss in pending)

    def push(self, step: int, loss: jax.Array) -> None:
        """Note a dispatched step; await the one `MAX_IN_FLIGHT_STEPS` before it."""
        self._pending.append((step, loss))
        # The very first loss is awaited: it ends the wait that a person notices most.
        if len(self._pending) > MAX_IN_FLIGHT_STEPS or not self.first_step_s:
            self._finish_step()

    def drain(self) -> None:
        """Await every step that was handed over."""
        with self.recorder.phase(
            "compute", self._pending[-1][0] if self._pending else 0
        ):
            while self._pending:
                self._finish_step()

    def pause(self, callback: PausingCallback) -> None:
        """Let a watcher do what it does with the devices at rest; no step counts it."""
        if self._pending:
            self.drain()
        callback.pause()
        self.restart_clock(True)

    def restart_clock(self, interrupted: bool) -> None:
        """Start timing the next step from now where something else came between."""
        if interrupted:
            self._last = time.perf_counter()

    def _finish_step(self) -> None:
        step, loss = self._pending.popleft()
        value, now = _mean_loss(loss), time.perf_counter()
        seconds, self._last = now - self._last, now
        if not self.first_step_s:
            self.first_step_s = time.time() - self.recorder.start_time
        if not math.isfinite(value):
            self._record_skip(step, value)
            return
        self._consecutive_skips = 0
        self.recorder.log_step(
            step=step,
            epoch=self.run_schedule.epoch_of(step),
            loss=value,
            # Skipped steps change nothing, so the optimizer has not counted them.
            learning_rate=self._learning_rate(step - 1 - self._skipped_steps),
            step_s=seconds,
        )
        self.callback.update(step=step, loss=value, step_s=seconds)

    def _record_skip(self, step: int, loss: float) -> None:
        """Note a step that changed nothing, or end the run after too many in a row."""
        self._skipped_steps += 1
        self._consecutive_skips += 1
        if self._consecutive_skips > self.run_schedule.max_consecutive_skips:
            raise FatalError(_divergence_message(step, loss))
        self.recorder.log_skipped_step(
            step=step, epoch=self.run_schedule.epoch_of(step)
        )

    def _learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        block, place = divmod(step, _RATE_BLOCK)
        if block != self._block:
            steps = np.arange(block * _RATE_BLOCK, (block + 1) * _RATE_BLOCK)
            self._block, self._table = block, np.asarray(self._learning_rates(steps))
        return float(self._table[place])


def _mean_loss(loss: jax.Array) -> float:
    """Return a loss, or the mean of the losses of the replicas that this host has."""
    if not loss.ndim:
        return float(loss)
    return float(np.mean([np.asarray(part.data) for part in loss.addressable_shards]))


def _divergence_message(step: int, loss: float) -> str:
    return "\n".join(
        (
            f"the loss is {loss} at step {step}",
            "  rule     a run whose loss is no number has nothing left to learn",
            "  remedy   a lower optim.lr, more optim.warmup_epochs, or model.classes",
            "           as many as the labels, under another run.name",
        )
    )
