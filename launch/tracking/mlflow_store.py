"""MLflow: a run of its tracking server, or of files beside the runs."""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from jaxdist.launch.config.tree import format_value
from jaxdist.launch.tracking.tracker import TrackedEnd, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

URI_VAR: Final = "MLFLOW_TRACKING_URI"
FILE_STORE_VAR: Final = "MLFLOW_ALLOW_FILE_STORE"
_FLUSH_S: Final = 1.0
_MAX_BATCH: Final = 900
"""Metrics that are sent at once; a server takes 1000."""
# Servers of older versions refuse parameters with more characters.
_MAX_TEXT: Final = 500
_STATUS: Final = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """Logs metrics in batches, parameters once, and files as artifacts."""

    def __init__(self) -> None:
        self._client: MlflowClient | None = None
        self._run, self._sent = "", time.monotonic()
        self._metrics: list[Metric] = []

    def start(self, run: TrackedRun) -> int:
        """Find the run again, or make it, in the experiment of its name."""
        store = os.environ.get(URI_VAR)
        if not store:
            # Later versions open a store of files only where that is asked for.
            os.environ.setdefault(FILE_STORE_VAR, "true")
            store = (run.folder.parent / "mlruns").resolve().as_uri()

        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        client = self._client = MlflowClient(tracking_uri=store)
        self._run, known = run.load_id("mlflow") or "", dict[str, str]()
        if self._run:
            try:
                known = dict(client.get_run(self._run).data.params)
                # It was ended before, and goes on: the call takes any status.
                client.set_terminated(self._run, "RUNNING")
            except MlflowException:  # the store is a new one
                self._run = ""
        if not self._run:
            group = client.get_experiment_by_name(run.experiment)
            home = (
                client.create_experiment(run.experiment)
                if group is None
                else group.experiment_id
            )
            self._run = client.create_run(home, run_name=run.name).info.run_id
            run.save_id("mlflow", self._run)
        texts = {k: format_value(v)[:_MAX_TEXT] for k, v in run.config.items()}
        # A parameter is written once. One that was changed since has its value beside.
        fresh = [Param(k, text) for k, text in texts.items() if k not in known]
        # A server takes 100 parameters at once.
        for at in range(0, len(fresh), 100):
            client.log_batch(self._run, params=fresh[at : at + 100])
        for key, text in texts.items():
            if known.get(key, text) != text:
                client.set_tag(self._run, f"changed.{key}", text)
        client.log_text(self._run, run.plan, "plan.json")
        # Every step that trains has this metric, so it tells the newest step.
        history = client.get_metric_history(self._run, "train/loss")
        return max((metric.step for metric in history), default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add metrics to the batch, and send it where it is due."""
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._metrics += [Metric(name, x, now, step) for name, x in values.items()]
        late = time.monotonic() - self._sent > _FLUSH_S
        if late or len(self._metrics) >= _MAX_BATCH:
            self._send()

    def end(self, summary: TrackedEnd) -> None:
        """Send the rest, the figures of the whole run and the files."""
        self._send()
        if self._client is None:
            return
        for name, value in summary.values.items():
            self._client.log_metric(self._run, f"summary/{name}", value)
        for path in summary.files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, _STATUS[summary.status])

    def _send(self) -> None:
        batch, self._metrics = self._metrics, []
        if self._client is not None and batch:
            for at in range(0, len(batch), _MAX_BATCH):
                self._client.log_batch(self._run, batch[at : at + _MAX_BATCH])
        self._sent = time.monotonic()
