"""Losses fetched a few steps late, so that the devices never wait for the host."""

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
"""Steps dispatched to the devices before the loss of an earlier one is awaited."""

# Learning rates computed at once: one call a step would cost more than writing its row.
_RATE_BLOCK: Final = 4096


class LossQueue:
    """Fetches losses a few steps late, so that the devices never wait for the host."""

    def __init__(
        self,
        run_schedule: RunSchedule,
        recorder: Recorder,
        callback: TrainingCallback,
        learning_rates: Callable[[np.ndarray], Any],
        skipped_steps: int,
    ) -> None:
        self.run_schedule, self.recorder = run_schedule, recorder
        self.callback = callback
        self.first_step_s = 0.0
        self._learning_rates, self._block, self._table = learning_rates, -1, np.zeros(0)
        self._skipped_steps, self._consecutive_skips = skipped_steps, 0
        self._pending: deque[tuple[int, jax.Array]] = deque()
        self._last = time.perf_counter()

    @property
    def devices_idle(self) -> bool:
        """Whether the devices have finished all dispatched steps."""
        pending: Any = [loss for _, loss in self._pending]
        return all(loss.is_ready() for loss in pending)

    def push(self, step: int, loss: jax.Array) -> None:
        """Add a dispatched step; await the one `MAX_IN_FLIGHT_STEPS` before it."""
        self._pending.append((step, loss))
        # The very first loss is awaited at once: it ends the wait that users notice
        # most.
        if len(self._pending) > MAX_IN_FLIGHT_STEPS or not self.first_step_s:
            self._finish_step()

    def drain(self) -> None:
        """Await all dispatched steps."""
        step = self._pending[-1][0] if self._pending else 0
        with self.recorder.phase("compute", step):
            while self._pending:
                self._finish_step()

    def pause(self, callback: PausingCallback) -> None:
        """Run a callback while the devices are idle; no step's time includes it."""
        if self._pending:
            self.drain()
        callback.on_pause()
        self.restart_clock(True)

    def restart_clock(self, interrupted: bool) -> None:
        """Time the next step from now if something else came in between."""
        if interrupted:
            self._last = time.perf_counter()

    def _finish_step(self) -> None:
        step, array = self._pending.popleft()
        if array.ndim:
            # One loss a replica: the mean over those of this host.
            shards = [np.asarray(part.data) for part in array.addressable_shards]
            loss = float(np.mean(shards))
        else:
            loss = float(array)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        if not self.first_step_s:
            self.first_step_s = time.time() - self.recorder.start_time
        epoch = self.run_schedule.epoch_of(step)
        if not math.isfinite(loss):
            self._skipped_steps += 1
            self._consecutive_skips += 1
            if self._consecutive_skips > self.run_schedule.max_consecutive_skips:
                raise FatalError(
                    f"the loss is {loss} at step {step}\n"
                    "  rule     a run whose loss is no number has nothing left to "
                    "learn\n  remedy   a lower optim.lr, more optim.warmup_epochs, or "
                    "model.classes\n"
                    "           as many as the labels, under another run.name"
                )
            self.recorder.log_skipped_step(step=step, epoch=epoch)
            return

        self._consecutive_skips = 0
        # Skipped steps change nothing, so the optimizer has not counted them.
        block, place = divmod(step - 1 - self._skipped_steps, _RATE_BLOCK)
        if block != self._block:
            steps = np.arange(block * _RATE_BLOCK, (block + 1) * _RATE_BLOCK)
            self._block, self._table = block, np.asarray(self._learning_rates(steps))
        self.recorder.log_step(
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=float(self._table[place]),
            step_s=seconds,
        )
        self.callback.on_step(step=step, loss=loss, step_s=seconds)
