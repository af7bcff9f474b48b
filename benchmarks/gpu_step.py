"""Steps on the GPU at hand: memory beside the compiled target, seconds beside others.

    python benchmarks/gpu_step.py --record            # on a machine with a GPU
    python benchmarks/gpu_step.py --only llama --without torch

Memory: what `jaxdist compile --target h100:1x1` says without a card, what the compiler
of the card says, and the most that the card held. Seconds: the same network, batch and
optimizer, in turn, in one process, by jaxdist's step, by `jax.jit` of a function that
one would write by hand, and by `torch.compile` with the fused optimizer of PyTorch.
Attention is that of cuDNN in the first two, and what PyTorch chooses in the third.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any
from unittest import mock

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch wants some too

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from record import add_record_option, row, write_result

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.device_feed import train_feed
from jaxdist.input.registry import open_data
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import make_job
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.train.objective import cast_floats
from jaxdist.train.program import initial_state, lower_program
from jaxdist.train.state import named_leaves

RESNET = "ResNet-50, bfloat16, 256 images"
LLAMA = "Llama 1B, bfloat16, 2 x 2,048 tokens"
SYNTHETIC = ("data.name=synthetic", "precision=bfloat16", "plan.mesh.data=1")
STEPS = {
    RESNET: ("resnet50", *SYNTHETIC, "data.batch=256"),
    LLAMA: ("llama", *SYNTHETIC, "data.batch=2"),
}


class Ours:
    """The step of `jaxdist train`."""

    name = "jaxdist"

    def __init__(self, config: Experiment) -> None:
        plan = Plan(mesh=MeshShape(data=1))
        source, _ = open_data(config.data, feature_spec(config))
        self.job = make_job(config, plan, source)
        began = time.perf_counter()
        lowered = lower_program(self.job.layout)
        program = lowered.compile(program_options(self.job.layout))
        program.raise_difference()
        self.compile_s = time.perf_counter() - began
        self.memory_bytes = program.memory_bytes
        self.step = program.compiled_step
        self.state = initial_state(self.job.layout)
        shapes = self.job.layout.batch_shapes
        feed = train_feed(
            source,
            self.job.order,
            program.batch_shardings,
            dtypes={k: s.dtype for k, s in shapes.items() if k != "id"},
        )
        # One batch, which stays on the devices: reading samples is no part of what is
        # timed.
        with feed as batches:
            self.batch = {
                k: x for k, x in next(batches).items() if k in program.batch_shardings
            }

    def __call__(self, steps: int) -> float:
        for _ in range(steps):
            self.state, metrics = self.step(self.state, self.batch)
        return float(np.mean(metrics.loss))


class Plain:
    """The same by `jax.jit`: a loss, its gradients, an update."""

    name = "jax.jit"

    def __init__(self, ours: Ours) -> None:
        task = ours.job.layout.task
        self.batch = jax.device_put(jax.device_get(ours.batch), jax.devices()[0])
        # Copies: each of the two steps donates its state.
        params = jax.device_put(jax.device_get(ours.state.params), jax.devices()[0])
        stats = jax.device_put(jax.device_get(ours.state.stats), jax.devices()[0])
        self.state = params, stats, jax.jit(task.optimizer.init)(params)

        def loss_of(params: Any, stats: Any, batch: Any) -> Any:
            # Kernels alone are cast, as in our step: norms and biases stay in float32.
            used = jax.tree.map(
                lambda x: cast_floats(x, task.dtype) if x.ndim > 1 else x, params
            )
            model: Any = nnx.merge(task.graph, used, stats, copy=True)
            model.train()
            inputs = task.objective.model_inputs(batch)
            outputs = model(*(cast_floats(x, task.dtype) for x in inputs))
            _, _, *kept = nnx.split(model, nnx.Param, ...)
            return task.objective.losses(outputs, batch).mean(), kept[0]

        @partial(jax.jit, donate_argnums=0)
        def step(state: Any, batch: Any) -> Any:
            params, stats, opt = state
            grad = jax.value_and_grad(loss_of, has_aux=True)
            (loss, stats), grads = grad(params, stats, batch)
            with jax.numpy_dtype_promotion("standard"):
                updates, opt = task.optimizer.update(grads, opt, params)
                params = optax.apply_updates(params, updates)
            return (params, stats, opt), loss

        began = time.perf_counter()
        with mock.patch(
            "jaxdist.models.transformer_blocks.causal_attention", cudnn_attention
        ):
            self.step = step.lower(self.state, self.batch).compile()
        self.compile_s = time.perf_counter() - began

    def __call__(self, steps: int) -> float:
        for _ in range(steps):
            self.state, loss = self.step(self.state, self.batch)
        return float(loss)


def cudnn_attention(query: Any, key: Any, value: Any, platform: str = "") -> Any:
    """Attend as one would write it for a GPU."""
    kernel: Any = "cudnn" if jax.default_backend() == "gpu" else None
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=True, implementation=kernel
    )


class Torch:
    """The same network by PyTorch, compiled, in bfloat16 by autocast."""

    name = "torch.compile"

    def __init__(self, title: str, ours: Ours) -> None:
        import torch

        self.torch, place = torch, "cuda"
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        if title == RESNET:
            from torchvision.models import resnet50

            count = len(ours.batch["label"])
            self.model = resnet50().to(place, memory_format=torch.channels_last)
            inputs = torch.randn(count, 3, 224, 224, device=place)
            self.inputs = inputs.to(memory_format=torch.channels_last)
            self.labels = torch.randint(0, 1000, (count,), device=place)
            self.optimizer = torch.optim.SGD(
                self.model.parameters(),
                lr=0.1,
                momentum=0.9,
                nesterov=True,
                weight_decay=1e-4,
                fused=True,
            )
        else:
            from transformers import LlamaConfig, LlamaForCausalLM

            tokens = next(x for x in ours.batch.values() if x.ndim == 2)
            leaves = named_leaves(ours.job.layout.task.state.params)
            (table,) = (x for name, x in leaves.items() if "tokens" in name)
            vocabulary = table.shape[0]
            sizes = LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_attention_heads=32,
                num_key_value_heads=8,
                tie_word_embeddings=True,
                attn_implementation="sdpa",
                use_cache=False,
            )
            self.model = LlamaForCausalLM(sizes).to(place)
            shape = tuple(tokens.shape)
            self.inputs = torch.randint(0, vocabulary, shape, device=place)
            # transformers shifts labels by one itself: they are the tokens.
            self.labels = self.inputs
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True
            )
        self.clips = title == LLAMA
        self.params = sum(p.numel() for p in self.model.parameters())
        self.compiled = torch.compile(self.model)
        began = time.perf_counter()
        self(1)
        self.compile_s = time.perf_counter() - began

    def __call__(self, steps: int) -> float:
        torch = self.torch
        for _ in range(steps):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                if self.clips:
                    loss = self.compiled(self.inputs, labels=self.labels).loss
                else:
                    loss = torch.nn.functional.cross_entropy(
                        self.compiled(self.inputs), self.labels
                    )
            loss.backward()
            if self.clips:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def timed(run: Any, steps: int) -> float:
    """Return seconds of a step, with its loss on the host."""
    began = time.perf_counter()
    run(steps)
    return (time.perf_counter() - began) / steps


def peak_bytes() -> int:
    """Return the most memory that this process has held on the card so far."""
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("peak_bytes_in_use", 0))


def target_bytes(words: tuple[str, ...], target: str) -> int | None:
    """Return the memory of the step compiled for a target, in another process."""
    command = [sys.executable, "-m", "jaxdist", "compile", *words]
    done = subprocess.run(
        [*command, "--target", target, "--fresh", "--json"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    if not done.stdout:
        print(done.stderr, file=sys.stderr)
        return None
    return int(json.loads(done.stdout)["memory_bytes"])


def measure(
    title: str, words: tuple[str, ...], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the rows of one step."""
    config = resolve_config(words[0], words[1:]).config
    there = target_bytes(words, args.target) if args.target else None
    earlier = peak_bytes()
    ours = Ours(config)
    ours(2)
    # Read before the others are made: the mark is the process's, and never falls.
    peak = peak_bytes()
    rows = [row(title, ours.memory_bytes / 1e9, "GB", figure="memory, card's compiler")]
    if there:
        rows.append(row(title, there / 1e9, "GB", figure=f"memory, {args.target}"))
    # A mark that has not risen is of an earlier network.
    if peak > earlier:
        rows.append(row(title, peak / 1e9, "GB", figure="memory, most on the card"))
    else:
        print(title, "memory on the card: more was used before; try --only", flush=True)
    runs: list[Any] = [ours, Plain(ours)]
    if "torch" not in args.without:
        runs.append(Torch(title, ours))
    for each in runs:
        print(title, each.name, f"{each.compile_s:.1f} s to compile", flush=True)
        each(3)
    times: dict[str, list[float]] = {each.name: [] for each in runs}
    for turn in range(args.rounds):
        # The order alternates: whoever runs second finds a warmer card.
        for each in runs if turn % 2 else runs[::-1]:
            times[each.name].append(timed(each, args.steps))
    for name, seconds in times.items():
        ms = [1e3 * s for s in seconds]
        rows.append(
            row(title, statistics.median(ms), "ms", figure=f"{name}, step", readings=ms)
        )
        if name != ours.name:
            pairs = zip(seconds, times[ours.name], strict=True)
            ratios = [theirs / own for theirs, own in pairs]
            middle = statistics.median(ratios)
            figure = f"times as fast as {name}"
            rows.append(row(title, middle, "", figure=figure, readings=ratios))
    for each in rows:
        print(each["case"], each["figure"], each["value"], each["unit"], flush=True)
    return rows


def attention_rows() -> list[dict[str, Any]]:
    """Return how far cuDNN's attention is from one in float64, with gradients."""
    from jaxdist.layers.attention import causal_attention

    rows = []
    shape, kv_shape = (2, 1000, 16, 64), (2, 1000, 4, 64)
    keys = jax.random.split(jax.random.key(0), 4)
    given = [
        jax.random.normal(k, s, jnp.float32).astype(jnp.bfloat16)
        for k, s in zip(keys, (shape, kv_shape, kv_shape, shape), strict=True)
    ]
    mesh = jax.make_mesh((1,), ("data",))

    def both(platform: str, *given: Any) -> Any:
        attend = partial(causal_attention, platform=platform)
        out, back = jax.vjp(attend, *given[:3])
        return (out, *back(given[3]))

    spec = jax.sharding.PartitionSpec()
    run = partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    fused = jax.jit(run(partial(both, "gpu"), check_vma=False))(*given)
    written = jax.jit(run(partial(both, "cpu"), check_vma=False))(*given)
    with jax.enable_x64(True):
        exact = jax.jit(partial(both, "cpu"))(*(x.astype(jnp.float64) for x in given))
    for name, *arrays in zip(
        ("result", "query", "key", "value"), fused, written, exact, strict=True
    ):
        near, plain, true = (np.asarray(x).astype(np.float64) for x in arrays)
        for figure, other in (("cuDNN", near), ("written out", plain)):
            error = float(np.linalg.norm(other - true) / np.linalg.norm(true))
            case = "attention, 1,000 tokens, 16 heads over 4, bfloat16"
            rows.append(row(f"{case}: {name}", error, "", figure=figure))
            print(rows[-1]["case"], figure, error, flush=True)
    return rows


def main() -> int:
    """Measure, print, and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="steps whose title has this word")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="steps a round")
    parser.add_argument("--target", default="h100:1x1", help="empty: none")
    parser.add_argument("--without", default="", help="torch: do without it")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the steps")
    add_record_option(parser)
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        parser.error(f"takes a GPU; jax has {jax.default_backend()} devices here")
    errors = attention_rows() if not args.only else []
    rows: list[dict[str, Any]] = []
    for title, words in STEPS.items():
        if args.only.lower() in title.lower():
            rows += measure(title, (*words, *args.set), args)
            gc.collect()
    if args.record:
        write_result(
            "gpu_step",
            rows,
            title="Steps on one GPU",
            measures="Memory of a step as the compiler of the target predicts it on a "
            "machine without a GPU, as the compiler beside the card does, the most "
            "that the card held, and seconds of a step beside jax.jit and "
            "torch.compile.",
            not_run="takes a GPU",
        )
    if args.record and errors:
        write_result(
            "gpu_attention",
            errors,
            title="Attention on one GPU",
            measures="The error of attention and of its gradients relative to float64, "
            "with cuDNN's kernel and written out.",
            not_run="takes a GPU",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
