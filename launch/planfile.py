"""A plan file given to a command: the same as its values typed one by one."""

from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.keys import values
from jaxdist.launch.values import write_value


def plan_words(path: str) -> tuple[str, ...]:
    """Return the overrides that a plan file stands for.

    Args:
        path: a `plan.json`.

    Raises:
        BadInput: there is no such file, or it is no plan.
    """
    try:
        plan = Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read",
            rule="a plan is a file, as jaxdist plan -o writes it",
            values=error.strerror or str(error),
            remedy="--plan FILE, for example the plan.json of a run folder",
        ) from error
    except (ValueError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} is no plan",
            rule="a plan is the JSON of a run folder's plan.json",
            values=str(error),
            remedy="--plan FILE, for example the plan.json of a run folder",
        ) from error
    return words_of(plan)


def words_of(plan: Plan) -> tuple[str, ...]:
    """Return the overrides that a plan stands for.

    Microbatches that it decides are those of the optimizer as well.
    """
    words = tuple(f"plan.{key}={write_value(x)}" for key, x in values(plan).items())
    if plan.microbatches:
        return *words, f"optim.accumulate={plan.microbatches}"
    return words
