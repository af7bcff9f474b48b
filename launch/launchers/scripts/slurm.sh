#!/bin/bash
# One program on the nodes of a SLURM job, joined by jax.distributed. By hand:
#
#   sbatch --nodes=4 slurm.sh python -m jaxdist.launch train digits
#
# Two minutes before its time is up every process is sent SIGTERM: all of them save one
# step and end with exit code 75. A job that ends so is queued again, JAXDIST_REQUEUES
# times at most, and goes on from what it has saved.
#
#SBATCH --job-name=jaxdist
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
set -euo pipefail

# The variables of srun say which process this is, and where process 0 listens.
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

# The first process that fails ends all; each line begins with the rank it is from. srun
# itself returns the largest code, which is that of those that it has ended.
shopt -s lastpipe
code=0 first=0
{
  srun --kill-on-bad-exit=1 --label "$@" 2>&1 >&3 3>&- | while IFS= read -r line; do
    printf '%s\n' "$line" >&2
    if [[ $first = 0 && $line =~ ^srun:\ error:.*Exited\ with\ exit\ code\ ([0-9]+)$ ]]; then
      first=${BASH_REMATCH[1]}
    fi
  done
} 3>&1 || code=$?
[ "$first" = 0 ] || code=$first

done=${SLURM_RESTART_COUNT:-0} most=${JAXDIST_REQUEUES:-100}
if [ "$code" = 75 ] && [ "$done" -lt "$most" ]; then
  echo "exit code 75: queued again, $((done + 1)) of $most" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
