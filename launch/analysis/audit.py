"""Audits a compiled step: compares its collectives and work with its plan."""

from dataclasses import asdict, dataclass
from typing import Any

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.train.layout import Layout
from jaxdist.train.program import Program, lower_program
from jaxdist.train.work_shares import LayerWorkShare, layer_work_shares


@dataclass(frozen=True, kw_only=True)
class StepAudit:
    """What an audit found."""

    experiment: str
    """Name of the experiment, or the path of its file."""
    program: Program
    """The compiled step, with the ledger and what differs from it."""
    work_shares: tuple[LayerWorkShare, ...]
    """Every layer's work, on one device and on each of the layout's."""

    @property
    def unplanned_all_gathers(self) -> tuple[CollectiveOp, ...]:
        """All-gathers of the compiled step that the ledger has not."""
        # XLA adds an all-gather without a word where it cannot split an operation: the
        # array is then whole on each device, and the split has brought nothing.
        planned = self.program.layout.ledger.payload_by_axes()
        return tuple(
            move
            for move in self.program.collectives
            if move.kind == "all-gather" and (move.kind, move.axes) not in planned
        )

    @property
    def xla_flops(self) -> int:
        """FLOPs a device by XLA's own count of the compiled step."""
        # XLA's cost analysis counts the body of a loop once.
        # The compilers of GPUs count nothing.
        return int((self.program.compiled_step.cost_analysis() or {}).get("flops", 0))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes a device, by the compiler; `shared` is of donated arguments."""
        sizes = self.program.compiled_step.memory_analysis()
        return {
            "arguments": sizes.argument_size_in_bytes,
            "results": sizes.output_size_in_bytes,
            "temporary": sizes.temp_size_in_bytes,
            "shared": sizes.alias_size_in_bytes,
            "total": self.program.memory_bytes,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the audit as plain values, in bytes and FLOPs."""
        program, plan = self.program, self.program.layout.plan
        ledger = program.layout.ledger
        return {
            "experiment": self.experiment,
            "plan": plan.title,
            "devices": plan.mesh.devices,
            "equal": not program.differences,
            "differences": [str(error) for error in program.differences],
            "unplanned_all_gathers": len(self.unplanned_all_gathers),
            "collectives": [asdict(row) for row in program.audit_rows],
            "ledger": [asdict(row) for row in ledger.rows],
            "outer_steps": [
                {
                    "after": join.sync.step_in_period,
                    "every": join.sync.sync_interval,
                    "collectives": [asdict(row) for row in join.audit_rows],
                }
                for join in program.outer_steps
            ],
            "memory_bytes": self.memory,
            "flops": {
                "one_device": sum(share.whole for share in self.work_shares),
                "device": sum(share.device for share in self.work_shares),
                "device_by_xla": self.xla_flops,
            },
            "work": [
                {
                    **asdict(share),
                    "planned": ledger.layer_flops.get(share.layer),
                    "share": share.share,
                    "repeats": share.repeats,
                }
                for share in self.work_shares
            ],
        }


def audit(experiment: str, layout: Layout) -> StepAudit:
    """Compile a step and compare it with its plan; nothing is trained.

    Args:
        experiment: name of the experiment, or the path of its file.
        layout: what would be trained, on devices that are here or are a target's.
    """
    return StepAudit(
        experiment=experiment,
        program=lower_program(layout).compile(program_options(layout)),
        work_shares=layer_work_shares(layout),
    )
