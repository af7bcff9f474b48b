"""A run record: what happened in one training run, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.records import known_fields, parse_record
from jaxdist.core.validation import check_range, json_text, parse_json

PHASES = ("compute", "compile", "evaluation", "input", "checkpoint", "other")
"""Where the wall clock of a run goes; the shares add up to the whole run."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The summary of a run: `summary.json` of the run folder, seconds and bytes."""

    name: str
    """Name of the run folder."""
    experiment: str
    """Name of the experiment, or the path of its file."""
    status: Literal["done", "stopped"] = "done"
    """done: every step was made; stopped: the same command resumes it."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The plan that was run, as `plan.json` has it."""
    devices: int = 1
    """Devices in the mesh."""
    platform: str = "cpu"
    """Kind of device: cpu, gpu or tpu."""
    parameters: int = 0
    """Trainable numbers in the model."""
    frozen_parameters: int = 0
    """Numbers of its parameters that are not trained."""
    steps: int = 0
    """Optimizer steps since the very start, earlier attempts included."""
    skipped: int = 0
    """Of these, steps that changed nothing: their gradient was not finite."""
    accuracy: float | None = None
    """Share of the held-out answers (labels, or tokens) that are right, each once."""
    loss: float | None = None
    """Mean loss on the held-out samples; nats a token for a language model."""
    correct: int = 0
    """Held-out answers that are right."""
    answers: int = 0
    """Held-out answers: one a sample, or one a token; 0: not written down."""
    held_out: int = 0
    """Held-out samples."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Metrics of one's own of the last evaluation, by name."""
    shuffle: str = ""
    """How training samples were exchanged; empty: each epoch drew from all."""
    exchange: Mapping[str, int] = field(default_factory=dict)
    """Where process 0 had the samples that it keeps from, and how many it held at
    most; empty: it keeps none."""
    samples_per_s: float = 0.0
    """Training samples a second: global batch over the median step time."""
    step_s: float = 0.0
    """Median seconds from one finished step to the next."""
    step_s_p5: float = 0.0
    """5th percentile of the same."""
    step_s_p95: float = 0.0
    """95th percentile of the same."""
    wall_s: float = 0.0
    """Seconds from the start of the command to its end, this attempt."""
    first_step_s: float = 0.0
    """Seconds from the start of the command to the first finished step."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, this attempt; the sum is `wall_s`."""
    bytes_by_collective: Mapping[str, int] = field(default_factory=dict)
    """Bytes each device sends a step, by `collective, axis`: the plan's ledger."""
    collectives: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """The same by the compiled step: `kind`, `axes`, `count`, payload bytes by the
    `ledger` and in the `program`, and `wire`, what a device sends of it at least."""
    memory_bytes: int = 0
    """Memory a device needs for the step: arguments, outputs and temporaries."""
    resumed_at: int | None = None
    """Step this attempt started from, when it resumed."""
    checkpoint: int | None = None
    """Newest checkpoint's step."""
    best: BestCheckpoint | None = None
    """The best checkpoint, where `checkpoint.best` names a metric."""

    def to_json(self) -> str:
        """Write the record; `from_json` reads the same value back."""
        return json_text(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """Read a record that `to_json` wrote, of any version.

        Raises:
            BadInput: a field is missing or of another type.
            json.JSONDecodeError: it is no JSON.
        """
        return cls.from_tree(parse_json(text))

    @classmethod
    def from_tree(cls, tree: object) -> "Run":
        """Make a record of plain values, as `from_json` does.

        Raises:
            BadInput: a field is missing, of another type or negative.
        """
        run = parse_record(cls, known_fields(cls, tree), "the summary")
        for name, value in vars(run).items():
            # Scores are what an objective makes them, below zero as well.
            if isinstance(value, int | float) and name not in ("loss", "accuracy"):
                check_range(name, value, minimum=1 if name == "devices" else 0)
        return run
