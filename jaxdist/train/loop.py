"""The loop: steps, evaluations and checkpoints in their order, until the plan's end."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import jax
import numpy as np

from jaxdist.core.errors import Failed
from jaxdist.train.metrics import Recorder
from jaxdist.train.nonfinite import skipped_steps
from jaxdist.train.program import Program
from jaxdist.train.state import TrainState

AHEAD: Final = 2
"""Steps handed to the devices before the loss of an earlier one is awaited."""

_BLOCK: Final = 4096
"""Learning rates read at once: a step's own would cost more than the step's line."""

Score = Mapping[str, Any]


class Judge(Protocol):
    """What the loop asks of an evaluation."""

    @property
    def ready(self) -> bool:
        """Whether its program is compiled."""

    def prepare(self) -> None:
        """Compile its program."""

    def __call__(self, state: TrainState) -> Score:
        """Score a state on the held-out samples; nothing where it was cut short."""


class Saver(Protocol):
    """What the loop asks of checkpoints."""

    def save(self, state: TrainState) -> None:
        """Keep a state; returns before it is on disk."""


class Watcher(Protocol):
    """Someone who looks on, a progress bar for one."""

    def update(self, *, step: int, loss: float, step_s: float) -> None:
        """See a finished step, counted from 1."""

    def tested(self, *, step: int, score: Score) -> None:
        """See an evaluation."""


@runtime_checkable
class Pausing(Protocol):
    """A watcher that does something between two steps, with the devices at rest."""

    def due(self, step: int) -> bool:
        """Whether it does so before this step; asked before each, alike in all."""

    def pause(self) -> None:
        """Do it."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """When things happen, in steps; a pure reading of the configuration."""

    steps: int
    """Steps of the whole run."""
    samples: int
    """Training samples; an epoch draws each once."""
    batch: int
    """Samples a step; batches straddle epochs."""
    save_every: int
    """Steps from one checkpoint to the next."""
    skips: int = 0
    """Steps in a row that may be skipped before the run fails."""
    owed: bool = False
    """Whether the evaluation of the state that it goes on from was cut short."""

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, that the last sample of step `step` (from 1) is in.

        >>> Course(steps=60, samples=5, batch=2, save_every=5).epoch(3)
        1
        """
        return (step * self.batch - 1) // self.samples

    def complete(self, step: int) -> int:
        """Return how many epochs are wholly drawn after `step` steps."""
        return step * self.batch // self.samples

    def tests(self, step: int) -> bool:
        """Whether this step completes an epoch, or the run."""
        ends = self.complete(step) > self.complete(step - 1)
        return ends or step == self.steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.save_every == 0 or step == self.steps


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the loop saw."""

    state: TrainState
    """The state after the last step."""
    score: Score
    """The last evaluation: loss, accuracy, correct, samples."""
    first_step_s: float
    """Seconds from the start of the command to the first finished step."""
    stopped: bool = False
    """Whether it was asked to end before the course did; the state is saved."""


def fit(
    program: Program,
    state: TrainState,
    batches: Iterable[Mapping[str, jax.Array]],
    *,
    course: Course,
    evaluate: Judge,
    saver: Saver,
    recorder: Recorder,
    watcher: Watcher,
    rates: Callable[[np.ndarray], Any],
) -> Outcome:
    """Train from `state` to the end of the course, or of the batches.

    Args:
        program: the compiled step.
        state: donated; its `step` says how far it is.
        batches: global batches from that step on, placed as `program.batch` says; they
            end early where the run is asked to end, in all processes alike.
        course: when to evaluate, to save and to end.
        evaluate: scores a state on the held-out samples.
        saver: keeps states.
        recorder: writes what happens.
        watcher: is shown what happens; one that is `Pausing` is asked before each step.
        rates: learning rates of an array of steps, from 0.
    """
    start = int(state.step)
    ledger = _Ticker(course, recorder, watcher, rates, skipped_steps(state.opt))
    score: Score = {}
    feed = iter(batches)
    if course.owed and start < course.steps:
        score = _test(evaluate, state, course, recorder, watcher)
    for step in range(start + 1, course.steps + 1):
        if isinstance(watcher, Pausing) and watcher.due(step):
            ledger.pause(watcher)
        batch = _next(feed, ledger, recorder, step)
        if batch is None:
            break
        with recorder.phase("compute", step):
            state, loss = program.run(step, state, batch)
            ledger.started(step, loss)
        if course.tests(step):
            ledger.drain()
            score = _test(evaluate, state, course, recorder, watcher)
        if course.saves(step):
            _save(saver, state, ledger, recorder)
        ledger.restart_clock(course.tests(step) or course.saves(step))
    ended = int(state.step)
    # A run that was longer before is past the end of a shorter course.
    finished = ended >= course.steps
    if finished and not score:
        score = _test(evaluate, state, course, recorder, watcher)
    elif ended > start and not course.saves(ended):
        _save(saver, state, ledger, recorder)
    return Outcome(
        state=state,
        score=score if finished or course.tests(ended) else {},
        first_step_s=ledger.first_step_s,
        stopped=not (finished and score),
    )


def _save(
    saver: Saver, state: TrainState, ledger: "_Ticker", recorder: Recorder
) -> None:
    ledger.drain()
    with recorder.phase("checkpoint", int(state.step)):
        saver.save(state)


def _next(
    feed: Iterator[Mapping[str, jax.Array]],
    ledger: "_Ticker",
    recorder: Recorder,
    step: int,
) -> Mapping[str, jax.Array] | None:
    """Return the next batch; None where the run is asked to end."""
    with recorder.phase("input", step):
        batch = next(feed, None)
    if ledger.idle:
        recorder.starved()
    return batch


def _test(
    evaluate: Judge,
    state: TrainState,
    course: Course,
    recorder: Recorder,
    watcher: Watcher,
) -> Score:
    step = int(state.step)
    if not evaluate.ready:
        with recorder.phase("compile", step):
            evaluate.prepare()
    with recorder.phase("evaluation", step):
        score = evaluate(state)
    if not score:
        return score
    recorder.tested(step=step, epoch=course.epoch(max(step, 1)), score=score)
    watcher.tested(step=step, score=score)
    return score


class _Ticker:
    """Awaits losses a few steps late, so that the devices never wait for the host."""

    def __init__(
        self,
        course: Course,
        recorder: Recorder,
        watcher: Watcher,
        rates: Callable[[np.ndarray], Any],
        skipped: int,
    ) -> None:
        self.course, self.recorder, self.watcher = course, recorder, watcher
        self.first_step_s = 0.0
        self._rates, self._block, self._table = rates, -1, np.zeros(0)
        self._skipped, self._in_a_row = skipped, 0
        self._pending: deque[tuple[int, jax.Array]] = deque()
        self._last = time.perf_counter()

    @property
    def idle(self) -> bool:
        """Whether the devices have done all that they were handed."""
        pending: Any = [loss for _, loss in self._pending]
        return all(loss.is_ready() for loss in pending)

    def started(self, step: int, loss: jax.Array) -> None:
        """Note a step that was handed over; await the one `AHEAD` before it."""
        self._pending.append((step, loss))
        # The very first loss is awaited: it ends the wait that a person notices most.
        if len(self._pending) > AHEAD or not self.first_step_s:
            self._finish()

    def drain(self) -> None:
        """Await every step that was handed over."""
        with self.recorder.phase(
            "compute", self._pending[-1][0] if self._pending else 0
        ):
            while self._pending:
                self._finish()

    def pause(self, watcher: Pausing) -> None:
        """Let a watcher do what it does with the devices at rest; no step counts it."""
        if self._pending:
            self.drain()
        watcher.pause()
        self.restart_clock(True)

    def restart_clock(self, interrupted: bool) -> None:
        """Start timing the next step from now where something else came between."""
        if interrupted:
            self._last = time.perf_counter()

    def _finish(self) -> None:
        step, loss = self._pending.popleft()
        value, now = _mean(loss), time.perf_counter()
        seconds, self._last = now - self._last, now
        if not self.first_step_s:
            self.first_step_s = time.time() - self.recorder.started
        if not math.isfinite(value):
            self._skip(step, value)
            return
        self._in_a_row = 0
        self.recorder.trained(
            step=step,
            epoch=self.course.epoch(step),
            loss=value,
            # Skipped steps change nothing, so the optimizer has not counted them.
            rate=self._rate(step - 1 - self._skipped),
            seconds=seconds,
        )
        self.watcher.update(step=step, loss=value, step_s=seconds)

    def _skip(self, step: int, loss: float) -> None:
        """Note a step that changed nothing, or end the run after too many in a row."""
        self._skipped += 1
        self._in_a_row += 1
        if self._in_a_row > self.course.skips:
            raise Failed(_diverged(step, loss))
        self.recorder.skipped(step=step, epoch=self.course.epoch(step))

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            steps = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            self._block, self._table = block, np.asarray(self._rates(steps))
        return float(self._table[place])


def _mean(loss: jax.Array) -> float:
    """Return a loss, or the mean of the losses of the replicas that this host has."""
    if not loss.ndim:
        return float(loss)
    return float(np.mean([np.asarray(part.data) for part in loss.addressable_shards]))


def _diverged(step: int, loss: float) -> str:
    return "\n".join(
        (
            f"the loss is {loss} at step {step}",
            "  rule     a run whose loss is no number has nothing left to learn",
            "  remedy   a lower optim.lr, more optim.warmup_epochs, or model.classes",
            "           as many as the labels, under another run.name",
        )
    )
