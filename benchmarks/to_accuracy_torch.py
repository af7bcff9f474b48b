"""A host of `to_accuracy.py`: trains with torch's DDP and its hooks; has no jax."""

import json
import os
import sys
from pathlib import Path

import to_accuracy_data as data
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

DENSE_STEPS = 2  # the least that the PowerSGD hook takes
ONE_BUCKET_MIB = 4096  # with several its PowerSGD aborts on gloo


def sent():
    """Bytes that this host's interface has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (own,) = (line for line in lines if line.strip().startswith("eth0:"))
    return int(own.split(":")[1].split()[8])


def network(seed):
    layers = []
    for kernel, bias in data.weights(seed):
        layer = torch.nn.Linear(*kernel.shape)
        layer.weight.data = torch.from_numpy(kernel.T.copy())
        layer.bias.data = torch.from_numpy(bias)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Trained:
    """One training with one method at one rate."""

    def __init__(self, method, lr, seed, bucket):
        part = data.BATCH // dist.get_world_size()
        self.own = slice(dist.get_rank() * part, (dist.get_rank() + 1) * part)
        (images, labels), test = data.digits()
        self.samples = torch.from_numpy(images), torch.from_numpy(labels).long()
        self.test = [torch.from_numpy(x) for x in test]
        self.network = network(seed)
        self.model = DistributedDataParallel(
            self.network, bucket_cap_mb=bucket, init_sync=False
        )
        if method == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif method.startswith("powersgd"):
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=int(method.removeprefix("powersgd")),
                start_powerSGD_iter=DENSE_STEPS,
            )
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr, momentum=0.9)

    def step(self, places):
        images, labels = (x[places[self.own]] for x in self.samples)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()

    def accuracy(self):
        images, labels = self.test
        with torch.no_grad():
            return (self.network(images).argmax(1) == labels).float().mean().item()


def main(methods, lrs, seeds, bucket=ONE_BUCKET_MIB, **until):
    torch.set_num_threads(1)
    rank, hosts = int(os.environ["JAXDIST_RANK"]), int(os.environ["JAXDIST_HOSTS"])
    address = f"tcp://{os.environ['JAXDIST_COORDINATOR']}"
    dist.init_process_group("gloo", address, rank=rank, world_size=hosts)
    if bucket == ONE_BUCKET_MIB:  # else the first bucket has 1 MiB whatever is asked
        first = dist.distributed_c10d
        first._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    for method in methods:
        for lr in lrs[method]:
            for seed in seeds:
                trained = Trained(method, lr, seed, bucket)
                dist.barrier()
                found = data.train(trained, seed, sent, **until)
                dist.barrier()
                found = {"method": f"torch {method}", "lr": lr, "seed": seed, **found}
                print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
