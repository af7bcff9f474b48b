"""Rank assignment: what each scheduler says, or variable, value and remedy."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.network_address import split_address
from jaxdist.launch.distributed.environment import (
    is_multi_process,
    planned_process_count,
)
from jaxdist.launch.distributed.schedulers import (
    SCHEDULERS,
    expand_node_list,
    read_rank_assignment,
)

OWN = {
    "JAXDIST_RANK": "1",
    "JAXDIST_HOSTS": "4",
    "JAXDIST_COORDINATOR": "node1:29500",
}
SLURM = {
    "JAXDIST_CLUSTER": "slurm",
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_NODELIST": "rack[1-2]n[1-4]",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "JAXDIST_CLUSTER": "ompi",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
OPEN_MPI_4 = OPEN_MPI | {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
}
OPEN_MPI_4_IPV6 = OPEN_MPI | {
    "OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b:c0,2620:10d::2]:43370"
}
OPEN_MPI_5 = OPEN_MPI | {"PMIX_NAMESPACE": "prterun-node-7-4711@1"}
MPICH = {
    "JAXDIST_CLUSTER": "mpich",
    "PMI_SIZE": "4",
    "PMI_RANK": "2",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
    "SLURM_JOB_NODELIST": "n[07-08]",
    "SLURM_JOB_ID": "5",
}
JOBSET = OWN | {"JAXDIST_CLUSTER": "jobset", "JOB_COMPLETION_INDEX": "2"}


def found(environ):
    mine = read_rank_assignment(environ)
    return mine.rank, mine.num_processes, mine.coordinator, mine.local_rank


@pytest.mark.parametrize(
    ("environ", "assignment"),
    [
        (OWN, (1, 4, "node1:29500", None)),
        (OWN | {"JAXDIST_COORDINATOR": "[::1]:7777"}, (1, 4, "[::1]:7777", None)),
        (SLURM, (3, 8, f"rack1n1:{4242 % 4096 + 61440}", 0)),
        (OPEN_MPI_4, (3, 4, f"10.96.0.1:{1531576320 // 4096 % 4096 + 61440}", 1)),
        (
            OPEN_MPI_4_IPV6,
            (3, 4, f"[fe80::b9b:c0]:{1314521088 // 4096 % 4096 + 61440}", 1),
        ),
        (MPICH, (2, 4, "n07:61445", 0)),
        (JOBSET, (2, 4, "node1:29500", None)),
    ],
)
def test_a_process_knows_its_rank(environ, assignment):
    assert is_multi_process(environ)
    assert found(environ) == assignment


def test_open_mpi_5_names_the_host_of_mpirun():
    rank, count, coordinator, local = found(OPEN_MPI_5)
    assert (rank, count, local) == (3, 4, 1)
    assert re.fullmatch(r"node-7:6[0-9]{4}", coordinator)
    one_host = OPEN_MPI_5 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert found(one_host)[2].startswith("127.0.0.1:")


def test_pbs_lists_its_hosts_in_a_file(tmp_path: Path):
    hosts = tmp_path / "hosts"
    hosts.write_text("n3\nn3\nn1\nn2\n")
    job = {
        "JAXDIST_CLUSTER": "pbs",
        "PBS_JOBID": "77.server",
        "PBS_NODEFILE": str(hosts),
    }
    spread = job | {"PBS_NODENUM": "2", "PBS_TASKNUM": "4"}
    assert found(spread)[:2] == (2, 3)
    assert found(spread)[2].startswith("n3:6")
    ranked = job | {"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALNRANKS": "2"}
    assert found(ranked)[:2] == (5, 6)
    assert found(ranked)[2] == found(spread)[2]
    with pytest.raises(BadInput, match="the script of a PBS job is one process"):
        found(job | {"PBS_NODENUM": "0", "PBS_TASKNUM": "1"})


def test_the_script_of_a_slurm_job_is_one_process():
    """sbatch sets the rank and the number of tasks as well, but starts none."""
    script = {"JAXDIST_CLUSTER": "slurm", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}
    assert found(script | {"SLURM_NTASKS": "1"})[:2] == (0, 1)
    for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"):
        with pytest.raises(BadInput, match=f"{name}=2(?s:.*)start it by srun"):
            found(script | {name: "2"})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"JAXDIST_CLUSTER": "slurm"}, "SLURM_JOB_ID is not set"),
        ({"JAXDIST_CLUSTER": "pbs"}, "PBS_JOBID is not set"),
        ({"JAXDIST_CLUSTER": "ompi"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({"JAXDIST_CLUSTER": "mpich"}, "PMI_SIZE is not set"),
        ({"JAXDIST_CLUSTER": "slrum"}, "JAXDIST_CLUSTER='slrum'"),
        (OPEN_MPI, "PMIX_NAMESPACE is not set"),
        (JOBSET | {"JOB_COMPLETION_INDEX": ""}, "JOB_COMPLETION_INDEX=''"),
        (OWN | {"JAXDIST_RANK": "one"}, "JAXDIST_RANK='one'"),
        (OWN | {"JAXDIST_RANK": "4"}, "JAXDIST_RANK='4'"),
        (OWN | {"JAXDIST_RANK": "-1"}, "JAXDIST_RANK='-1'"),
        (OWN | {"JAXDIST_HOSTS": "0"}, "JAXDIST_HOSTS='0'"),
        ({"JAXDIST_RANK": "1"}, "JAXDIST_HOSTS is not set"),
        ({"JAXDIST_HOSTS": "0"}, "JAXDIST_RANK is not set"),
        ({"JAXDIST_RANK": "0", "JAXDIST_HOSTS": "2"}, "COORDINATOR is not set"),
        (OWN | {"JAXDIST_COORDINATOR": "localhost"}, "COORDINATOR='localhost'"),
        (OWN | {"JAXDIST_COORDINATOR": "::1:7777"}, "IPv6 stands in brackets"),
        (OWN | {"JAXDIST_COORDINATOR": "n:99999"}, "COORDINATOR='n:99999'"),
        (SLURM | {"SLURM_STEP_NODELIST": "n[1-"}, r"SLURM_STEP_NODELIST='n\[1-'"),
    ],
)
def test_what_cannot_be_is_named(environ, said):
    assert is_multi_process(environ)
    with pytest.raises(BadInput, match=said) as refused:
        read_rank_assignment(environ)
    assert refused.value.rule
    assert refused.value.remedy[0]


def test_the_planned_number_is_a_number():
    with pytest.raises(BadInput, match="JAXDIST_PLANNED='many'"):
        planned_process_count({"JAXDIST_PLANNED": "many"}, 2)


_NAMES = sorted({*OWN, *SLURM, *OPEN_MPI_4, *OPEN_MPI_5, *MPICH, *JOBSET})
_WHOLE = st.sampled_from(
    [OWN, SLURM, OPEN_MPI_4, OPEN_MPI_4_IPV6, OPEN_MPI_5, MPICH, JOBSET]
)
_VALUES = st.one_of(
    st.sampled_from(["", "0", "1", "2", "-1", "007", "1.5", "4" * 30, "٣", "a b"]),
    st.sampled_from(["n[1-3]", "n[3-1]", "[", "a,,b", "n[1-999999999]", "[::1]:1"]),
    st.sampled_from([*SCHEDULERS, "host:1", "host:0", "::1"]),
    st.text(max_size=12).filter(lambda text: "\0" not in text),
)


@settings(max_examples=300, deadline=None)
@given(_WHOLE, st.dictionaries(st.sampled_from(_NAMES), st.none() | _VALUES))
def test_any_environment_gives_a_rank_or_is_refused(whole, changes):
    environ = {k: v for k, v in (whole | changes).items() if v is not None}
    try:
        mine = read_rank_assignment(environ)
    except BadInput as refused:
        said = refused.rule, refused.values, *refused.remedy
    else:
        said = ()
    if said:
        assert all(said)
        return
    assert 0 <= mine.rank < mine.num_processes
    assert mine.num_processes == 1 or split_address(mine.coordinator) is not None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True),
            st.integers(0, 20),
            st.integers(0, 12),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_node_list_is_read_whole(entries):
    """The short form of two levels of brackets, held against the names written out."""
    short = ",".join(f"{p}[{a:0{w}}-{a + n}]x[1,3]" for p, a, n, w in entries)
    names = [
        f"{p}{i:0{w}}x{k}"
        for p, a, n, w in entries
        for i in range(a, a + n + 1)
        for k in (1, 3)
    ]
    assert expand_node_list(short) == names
