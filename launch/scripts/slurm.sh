#!/bin/bash
# One program on the nodes of a SLURM job, joined by jax.distributed. By hand:
#
#   sbatch --nodes=4 slurm.sh python -m jaxdist.launch train digits
#
#SBATCH --job-name=jaxdist
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# jax asks SLURM which process this is and where process 0 listens.
export JAXDIST_CLUSTER=slurm
export PYTHONUNBUFFERED=1
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"

# A proxy would stand between processes that speak to each other directly.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

# jax gives a process the GPU of its number on the node. One that is alone takes all.
if [ "${SLURM_NTASKS_PER_NODE:-1}" = 1 ] && [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then
  JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
  export JAX_LOCAL_DEVICE_IDS
fi

# The first process that fails ends all; each line begins with the rank it is from.
exec srun --kill-on-bad-exit=1 --label "$@"
