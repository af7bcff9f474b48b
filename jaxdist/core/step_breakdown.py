"""A breakdown of profiled steps: where devices spent their time, as plain data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from jaxdist.core.records import parse_record
from jaxdist.core.validation import json_text, parse_json

COMPUTE: Final = "compute"
UPDATE: Final = "update"
COMPRESSION: Final = "packing"
"""Term of the time in which gradients are compressed and decompressed."""
WAIT: Final = "waiting"
"""Term of the time in which a collective waits for devices that are not there yet."""
BUBBLE: Final = "bubble"
"""The same where the collective carries activations between pipeline stages."""
BETWEEN_STEPS: Final = "between steps"
"""Term of the time in which no program runs."""
OTHER: Final = "other"
"""Term of the time in a step in which no operation runs."""


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """Seconds of a layer in a step."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def both(self) -> float:
        """Of both directions."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class StageTiming:
    """One piece of work of a stage on one microbatch, in a step."""

    kind: str
    """`forward`, `backward` or `weights`."""
    stage: int
    """Stage of the pipeline, from 0."""
    micro: int
    """Microbatch, from 0; of those that the device works on."""
    start: float
    """Seconds from the beginning of the step."""
    end: float
    """Seconds from the beginning of the step."""


@dataclass(frozen=True, kw_only=True)
class DeviceBreakdown:
    """A device in the steps that were watched; each number is of one step."""

    device: int
    """Its place among the devices of the process."""
    steps: int
    """Steps that were watched from their beginning to the next."""
    terms_s: Mapping[str, float]
    """Seconds by term, `collective, axes` for what moves; they add up to the step."""
    layers_s: Mapping[str, LayerTime] = field(default_factory=dict)
    """Seconds of computing, by layer; the name is empty where no layer is known."""
    lane: tuple[StageTiming, ...] = ()
    """What it did for stages in one of the steps, the median; empty without stages."""

    @property
    def step_s(self) -> float:
        """Seconds of a step, the profiler's own included."""
        return sum(self.terms_s.values())


@dataclass(frozen=True, kw_only=True)
class StepBreakdown:
    """`measured.json` of a run folder: what its first process saw of its devices."""

    cores: int
    """Cores that the process may use."""
    processes: int
    """Processes of the run; the other ones' devices were not watched."""
    devices: tuple[DeviceBreakdown, ...]
    """In their order."""

    @property
    def busiest(self) -> DeviceBreakdown:
        """The device that computes longest."""
        # The others wait for it, so its terms are those that a step is made of.
        return max(self.devices, key=lambda one: one.terms_s.get(COMPUTE, 0.0))

    def layer(self, name: str) -> LayerTime:
        """Return a layer's seconds, on the device where it takes longest."""
        found = (one.layers_s.get(name, LayerTime()) for one in self.devices)
        return max(found, key=lambda pair: pair.both)

    def to_json(self) -> str:
        """Write the record; `from_json` reads the same value back."""
        return json_text(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "StepBreakdown":
        """Read a record that `to_json` wrote.

        Raises:
            BadInput: a field is missing, unknown or of another type.
            json.JSONDecodeError: it is no JSON.
        """
        return parse_record(cls, parse_json(text), "the breakdown")
