"""Memory of processes that read a network of Hugging Face into fsdp.

    python benchmarks/hf_memory.py --processes 8 --depth 8

Writes a Llama with random weights in bfloat16, in several files, and starts processes
that read it into one mesh, leaf by leaf, as `weights=FOLDER` does. Each says what its
part of the float32 weights is, and its anonymous memory before, at most, and after:
pages of the files are the system's, and are not counted.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxdist.core.safetensors_file import TensorWriter

EMBED, HIDDEN, VOCABULARY = 2048, 5632, 32000


def write_network(folder, depth, files=3):
    """Write a Llama with random weights, a tensor at a time."""
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": EMBED,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": depth,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    table = (VOCABULARY, EMBED)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": table,
        "lm_head.weight": table,
    }
    shapes["model.norm.weight"] = (EMBED,)
    # 8 heads of keys and values for 16 of queries.
    inner = {"q": EMBED, "k": EMBED // 2, "v": EMBED // 2, "o": EMBED}
    for block in range(depth):
        at = f"model.layers.{block}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}.{norm}.weight"] = (EMBED,)
        for name, rows in inner.items():
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (rows, EMBED)
        for name in ("gate", "up"):
            shapes[f"{at}.mlp.{name}_proj.weight"] = (HIDDEN, EMBED)
        shapes[f"{at}.mlp.down_proj.weight"] = (EMBED, HIDDEN)
    rng, index = np.random.default_rng(0), {}
    for number, names in enumerate(np.array_split(sorted(shapes), files), 1):
        file = f"model-{number:05}-of-{files:05}.safetensors"
        own = {str(name): ("BF16", shapes[name]) for name in names}
        writer = TensorWriter(folder / file, own)
        for name in own:
            drawn = rng.standard_normal(shapes[name], dtype="f4") * 0.02
            writer.write(name, drawn.astype(ml_dtypes.bfloat16))
            index[name] = file
    tree = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(tree)


def anonymous_bytes():
    """Memory of this process that is no page of a file."""
    text = Path("/proc/self/status").read_text()
    # /proc says kB; mapped pages of files are in RssFile.
    return 1024 * int(text.split("RssAnon:")[1].split()[0])


def read(folder, rank, processes, port):
    """Read the part of one process, and print what it took."""
    import jax
    from flax import nnx
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxdist.models.config import ModelConfig
    from jaxdist.models.pretrained.config_json import model_settings
    from jaxdist.models.pretrained.folder import PretrainedFolder
    from jaxdist.models.registry import model_factory
    from jaxdist.train.state import named_leaves

    jax.distributed.initialize(f"localhost:{port}", processes, rank)
    mesh = jax.make_mesh((processes,), ("fsdp",), (jax.sharding.AxisType.Auto,))
    found = PretrainedFolder.open(folder)
    config = ModelConfig(**model_settings(found.config))
    network = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    leaves = {}
    for name, x in named_leaves(nnx.state(network, nnx.Param)).items():
        # The first dim that divides, as plans do where nothing speaks against it.
        dim = next(d for d, n in enumerate(x.shape) if n % processes == 0)
        place = NamedSharding(mesh, P(*[None] * dim, "fsdp"))
        leaves[name] = jax.ShapeDtypeStruct(x.shape, "float32", sharding=place)
    places = found.check(config.name, leaves)
    before, peak, is_done = anonymous_bytes(), [0], threading.Event()

    def watch():
        while not is_done.is_set():
            peak[0] = max(peak[0], anonymous_bytes())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    arrays = {n: found.read(places[n], x) for n, x in leaves.items()}
    jax.block_until_ready(arrays)
    seconds = time.perf_counter() - start
    is_done.set()
    watcher.join()
    row = {
        "rank": rank,
        "share": sum(x.addressable_shards[0].data.nbytes for x in arrays.values()),
        "largest": max(x.size * 4 for x in arrays.values()),
        "peak": peak[0] - before,
        "after": anonymous_bytes() - before,
        "seconds": seconds,
    }
    print(json.dumps(row), flush=True)
    jax.distributed.shutdown()


def main():
    """Write the network, and start the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.rank is not None:
        read(args.folder, args.rank, args.processes, args.port)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_network(folder, args.depth)
        size = sum(path.stat().st_size for path in folder.iterdir())
        with socket.socket() as one:
            one.bind(("localhost", 0))
            port = one.getsockname()[1]
        words = [sys.executable, __file__, "--folder", place, "--port", str(port)]
        words += ["--processes", str(args.processes)]
        environ = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        running = [
            subprocess.Popen(
                [*words, "--rank", str(rank)],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(args.processes)
        ]
        rows = [json.loads(one.communicate()[0]) for one in running]
    mega = 1e6
    print(f"{size / 1e9:.2f} GB on disk, {args.processes} processes")
    for row in rows:
        over = row["peak"] - row["share"]
        print(
            f"rank {row['rank']}: its part {row['share'] / mega:.0f} MB, peak "
            f"{row['peak'] / mega:.0f} MB, {over / mega:.0f} MB above; largest leaf "
            f"{row['largest'] / mega:.0f} MB; {row['seconds']:.1f} s"
        )


if __name__ == "__main__":
    main()
