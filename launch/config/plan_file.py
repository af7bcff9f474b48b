"""Plan files: a plan, with the network, batch and version that it was made for."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput, nearest_path
from jaxdist.core.plan import PLAN_TARGET_KEY, Plan
from jaxdist.core.text_encoding import decode_text, read_text
from jaxdist.core.validation import json_text, parse_json
from jaxdist.core.version import VERSION
from jaxdist.launch.config.tree import flatten_config, format_value

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.core.profile import Profile
    from jaxdist.launch.config.resolve import ResolvedConfig


_STEP_COST_KEYS: Final = ("model.", "data.batch", "data.context", "precision")
"""Beginnings of the keys that a step's time and memory follow from."""
_MAX_SHOWN: Final = 4


def plan_file_text(plan: Plan, resolved: "ResolvedConfig", cluster: "Cluster") -> str:
    """Return the text of a plan file that says what it is for.

    Args:
        plan: what was found.
        resolved: the experiment it was found for.
        cluster: the machines.
    """
    # Settings and no digest of them: what differs is to be named.
    settings = _target_settings(resolved)
    return _with_target(plan, {"cluster": cluster.name, "settings": settings})


def profiled_plan_file_text(
    plan: Plan, profile: "Profile", path: str, cluster: "Cluster | None"
) -> str:
    """Return the text of a plan file that was made from a profile.

    A minibatch of the profile is a microbatch of the run, and the run decides how many
    of them a step has.

    Args:
        plan: what was found.
        profile: what it was found for.
        path: file of the profile.
        cluster: the machines; None where bandwidths were given.
    """
    dtype = profile.inputs[0].partition("[")[0]
    settings = {"model.name": profile.model}
    # The input of a language model is int32 tokens, which say nothing of the precision.
    if dtype.startswith(("float", "bfloat")):
        settings["precision"] = dtype
    about: dict[str, Any] = {"profile": path, "workers": plan.mesh.devices}
    about |= {"settings": settings}
    about |= {} if cluster is None else {"cluster": cluster.name}
    if plan.stages > 1:
        about["microbatch"] = profile.batch
    return _with_target(plan, about)


def _with_target(plan: Plan, about: dict[str, Any]) -> str:
    """Write a plan with what it was made for, and by which version."""
    about = {"version": VERSION, **about}
    tree = {**json.loads(plan.to_json()), PLAN_TARGET_KEY: about}
    return json_text(tree, indent=2) + "\n"


def check_plan_target(
    path: str, resolved: "ResolvedConfig", cluster: "Cluster | None" = None
) -> None:
    """Refuse a plan file that was made for something else.

    Args:
        path: a plan file; one that does not say what it is for fits everything.
        resolved: what it shall be used for.
        cluster: the cluster that was named, or None.

    Raises:
        BadInput: another version, cluster, or other settings; says which.
    """
    about = parse_json(read_text(Path(path))).get(PLAN_TARGET_KEY)
    if not isinstance(about, dict):
        return
    again = _plan_command(path, resolved, about.get("cluster", "NAME"))
    if "profile" in about:
        workers = about.get("workers", resolved.config.plan.mesh.pipe)
        on = f"--cluster {about['cluster']}" if "cluster" in about else "--bandwidth B"
        asked = f"--profile {about['profile']} --workers {workers} {on}"
        again = f"jaxdist plan stages {asked} {_overwrite(path)}"

    version = about.get("version")
    if version != VERSION:
        raise BadInput(
            f"{path} was made by another version",
            rule="a plan is run by the version that predicted it",
            values=f"made by {version}, this is {VERSION}",
            remedy=(again, f"or without {PLAN_TARGET_KEY} in the file"),
        )
    made_on = about.get("cluster")
    # Without a cluster on the command line nobody claims that it is another one.
    if cluster is not None and made_on not in (None, cluster.name):
        raise BadInput(
            f"{path} was made for another cluster",
            rule="a plan is run on the machine that it was searched for",
            values=f"made for {made_on}, --cluster {cluster.name}",
            remedy=(
                f"--cluster {made_on}",
                _plan_command(path, resolved, cluster.name),
            ),
        )
    # Stages are balanced by times that were measured at one minibatch size; at another
    # one the layers' times do not scale alike, and the cuts would be wrong.
    batch, count = resolved.config.data.batch, resolved.config.optim.accumulate
    measured = about.get("microbatch")
    if measured is not None and batch != measured * count:
        raise BadInput(
            f"{path} was made for another microbatch",
            rule="stages are cut from the times of a minibatch of the profile, which "
            "is data.batch / optim.accumulate samples of the run",
            values=f"{batch} / {count} samples, the profile's {measured}",
            remedy=(f"data.batch={measured * count}", again),
        )
    # Only settings that both know are compared: a plan file of a profile has the name
    # of the network and the precision, and nothing else.
    then, now = about.get("settings") or {}, _target_settings(resolved)
    other = [key for key in now if key in then and then[key] != now[key]]
    if other:
        differ = [f"{key} = {now[key]}, the plan's {then[key]}" for key in other]
        left = len(other) - _MAX_SHOWN
        more = [f"and {left} others"] if left > 0 else []
        typed = " ".join(f"{key}={then[key]}" for key in other[:_MAX_SHOWN])
        raise BadInput(
            f"{path} was made for something else",
            rule="a plan is run with the network and the batch that it was made for",
            values="; ".join([*differ[:_MAX_SHOWN], *more]),
            remedy=(again,) if more else (typed, again),
        )


def _plan_command(path: str, resolved: "ResolvedConfig", cluster: str) -> str:
    """Return the command that makes the plan for what it shall be used for now."""
    settings = [
        f"{key}={value}"
        for key, value in _target_settings(resolved).items()
        if resolved.sources[key] == "command line"
    ]
    words = shlex.join([resolved.experiment, *settings])
    devices = resolved.config.plan.mesh.devices
    asked = f"--cluster {cluster} --devices {devices}"
    return f"jaxdist plan {words} {asked} {_overwrite(path)}"


def _overwrite(path: str) -> str:
    return f"-o {shlex.quote(path)} --force"


def _target_settings(resolved: "ResolvedConfig") -> dict[str, Any]:
    found = flatten_config(resolved.config).items()
    return {k: format_value(x) for k, x in found if k.startswith(_STEP_COST_KEYS)}


def load_plan_overrides(path: str) -> tuple[str, ...]:
    """Return the overrides that a plan file stands for.

    Args:
        path: a `plan.json`.

    Raises:
        BadInput: there is no such file, or it is no plan.
    """
    try:
        plan = Plan.from_json(decode_text(Path(path).read_bytes(), path))
    except OSError as error:
        near = nearest_path(Path(path), "*.json")
        raise BadInput(
            f"{path} cannot be read",
            rule="a plan is a file, as jaxdist plan -o writes it",
            values=error.strerror or str(error),
            remedy=f"did you mean {near}?"
            if near
            else "--plan FILE, for example the plan.json of a run folder",
        ) from error
    except (ValueError, TypeError) as error:
        # BadInput is a ValueError: a plan that is read but refused says why itself.
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} is no plan",
            rule="a plan is the JSON of a run folder's plan.json",
            values=str(error),
            remedy="--plan FILE, for example the plan.json of a run folder",
        ) from error
    return plan_to_overrides(plan)


def plan_to_overrides(plan: Plan) -> tuple[str, ...]:
    """Return the overrides that a plan stands for."""
    words = tuple(
        f"plan.{key}={format_value(x)}" for key, x in flatten_config(plan).items()
    )
    # Microbatches of a pipeline are those over which the optimizer adds gradients up.
    if plan.microbatches:
        return *words, f"optim.accumulate={plan.microbatches}"
    return words
