"""The Python front: experiments run and planned by a program, or in a notebook."""

from jaxdist.launch.api.experiment_run import plan_for, run

__all__ = ["plan_for", "run"]
