"""Parameters of the universe from maps of its matter, on CosmoFlow."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def cosmoflow() -> Experiment:
    """Train CosmoFlow on volumes of 128 x 128 x 128 with four targets each.

    Source: Farrell et al. 2021, "MLPerf HPC", arXiv:2110.11466, and its reference
    `mlcommons/hpc`, cosmoflow/configs/cosmo.yaml: momentum 0.9, rate 0.001 for a batch
    of 64, warm-up over 4 epochs, mean squared error. There the rate falls in two
    steps, here as a cosine. Volumes are a folder of files: docs/experiments.md.

    Expected time: not measured, it takes accelerators and 5 TB of data.
    Expected score: mean absolute error 0.124 (the benchmark's target); not run here.
    Command: jaxdist train cosmoflow data.path=FOLDER    (or data.name=synthetic)
    """
    return Experiment(
        name="cosmoflow",
        epochs=128,
        data=DataConfig(name="volumes", batch=64, shift=0, threads=4),
        model=ModelConfig(name="cosmoflow"),
        optim=OptimConfig(lr=1e-3, warmup_epochs=4.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
