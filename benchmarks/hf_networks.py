"""Tiny networks of Hugging Face with random weights, and what transformers says.

    python benchmarks/hf_networks.py tests/models/data/hf          # write them
    python benchmarks/hf_networks.py --check                       # hold ours to them

Needs an environment with torch and transformers. Each folder has config.json, weights
and expected.safetensors: tokens and the logits of transformers in float32. `--check`
makes larger ones of each kind, with all rope scalings, imports them with
`jaxdist import hf` (--python names an interpreter that has jaxdist), and exports them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

CONTEXT = 24
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def sizes(**more):
    """Sizes of the Llama family."""
    return {
        "vocab_size": 48,
        "hidden_size": 16,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
    } | more


def llama(rope=None, **more):
    """A Llama with a rope."""
    rope = {"rope_parameters": rope} if rope else {}
    return transformers.LlamaConfig(**sizes(**rope, **more))


CASES = {
    "gpt2": transformers.GPT2Config(
        vocab_size=48,
        n_positions=CONTEXT,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_inner=40,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "llama3": llama(LLAMA3, head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(
        **sizes(sliding_window=None, tie_word_embeddings=False, dtype="bfloat16")
    ),
    "qwen2": transformers.Qwen2Config(**sizes(tie_word_embeddings=True)),
    "mixtral": transformers.MixtralConfig(
        **sizes(
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            tie_word_embeddings=False,
        )
    ),
}
"""What is committed."""
MORE = {
    "linear": llama(
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}, vocab_size=96
    ),
    "dynamic": llama({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
    "llama2": llama(num_key_value_heads=4, hidden_size=32, tie_word_embeddings=False),
}
"""What is held to transformers beside them."""


def make(folder, config, shard_size="1GB"):
    """Write a network with random weights, and its logits."""
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            # Norms and biases as well, which a fresh network has as ones and zeros.
            noise = torch.randn_like(parameter) * 0.3
            parameter.copy_(noise + (parameter if parameter.ndim == 1 else 0))
        # Rounded before the logits are taken: they are those of the weights in the
        # file.
        if getattr(config, "dtype", None) == torch.bfloat16:
            for parameter in network.parameters():
                parameter.copy_(parameter.bfloat16().float())
    tokens = torch.randint(0, config.vocab_size, (2, CONTEXT))
    with torch.no_grad():
        logits = network(tokens).logits
    if getattr(config, "dtype", None) == torch.bfloat16:
        network = network.bfloat16()
    network.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    expected = {"tokens": tokens.int(), "logits": logits.contiguous()}
    save_file(expected, folder / "expected.safetensors")


def read_all(folder):
    """Return all tensors of a folder, as bytes."""
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        for name, x in load_file(path).items():
            found[name] = (x.dtype, x.shape, x.contiguous().view(torch.uint8).numpy())
    return found


def check(python):
    """Import and export each network; print the largest difference."""
    worst = 0.0
    for name, config in (CASES | MORE).items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, name)
            make(folder, config, shard_size="8KB")
            command = [python, "-m", "jaxdist.launch"]
            run = [*command, "import", "hf", str(folder), "--dir", f"{place}/runs"]
            subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
            program = (
                "import sys, jax, numpy as np; from jaxdist.train.load import load; "
                "net, _ = load(sys.argv[1]); x = np.load(sys.argv[2]); "
                "np.save(sys.argv[3], np.asarray(jax.jit(net)(x)))"
            )
            expected = load_file(folder / "expected.safetensors")
            import numpy as np

            np.save(f"{place}/x.npy", expected["tokens"].numpy())
            words = [f"{place}/runs/{name}", f"{place}/x.npy", f"{place}/y.npy"]
            subprocess.run([python, "-c", program, *words], check=True)
            ours = torch.from_numpy(np.load(f"{place}/y.npy"))
            apart = (ours - expected["logits"]).abs().max().item()
            out = Path(place, "out")
            again = [*command, "export", "hf", f"{place}/runs/{name}", str(out)]
            subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
            before, after = read_all(folder), read_all(out)
            same = before.keys() == after.keys() and all(
                before[k][:2] == after[k][:2] and (before[k][2] == after[k][2]).all()
                for k in before
            )
            # transformers reads what was written, and says the same.
            back = transformers.AutoModelForCausalLM.from_pretrained(
                out, dtype=torch.float32
            ).eval()
            with torch.no_grad():
                theirs = back(expected["tokens"]).logits
            reread = (theirs - expected["logits"]).abs().max().item()
            row = {"network": name, "logits": apart, "bytes": same, "reread": reread}
            print(json.dumps(row))
            worst = max(worst, apart, reread, 0.0 if same else 1.0)
    print(f"largest difference {worst:.2g}, torch {torch.__version__}")
    return int(worst > 1e-4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    if args.check:
        sys.exit(check(args.python))
    for name, config in CASES.items():
        size = "8KB" if name == "qwen2" else "1GB"
        make(args.folder / name, config, shard_size=size)
