"""`jaxdist calibrate read`: what nccl-tests and OSU print becomes a level of a cluster."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.calibrate.alpha_beta_fit import (
    CollectiveTiming,
    find_algorithm_switch,
    fit_alpha_beta,
)
from jaxdist.calibrate.benchmark_outputs.read import read_benchmarks
from jaxdist.core.plan import MeshShape
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.launch.cli.main import main
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group

DATA = Path(__file__).parent / "data" / "outputs"
ALPHA, RATE = 7e-6, 180e9
SIZES = [1 << power for power in range(10, 31, 2)]
NCCL = {  # bus bandwidth over size / time, and messages, for n ranks and 16 of them
    "all_reduce_perf": ("sum", lambda n: 2 * (n - 1) / n, 8),
    "all_gather_perf": ("none", lambda n: (n - 1) / n, 4),
    "reduce_scatter_perf": ("sum", lambda n: (n - 1) / n, 4),
    "alltoall_perf": ("none", lambda n: (n - 1) / n, 15),
    "sendrecv_perf": ("sum", lambda _: 1.0, 1),
}
OSU = {  # title, bytes a rank sends over size for n ranks, messages for 16
    "osu_allreduce": ("Allreduce Latency", lambda n: 2 * (n - 1) / n, 8),
    "osu_allgather": ("Allgather Latency", lambda n: n - 1, 4),
    "osu_reduce_scatter": ("Reduce_scatter Latency", lambda n: (n - 1) / n, 4),
    "osu_alltoall": (
        "All-to-All Personalized Exchange Latency",
        lambda n: n - 1,
        15,
    ),
    "osu_latency": ("Latency", lambda _: 1.0, 1),
}
KINDS = {
    "all_reduce_perf": "all-reduce",
    "all_gather_perf": "all-gather",
    "alltoall_perf": "all-to-all",
    "sendrecv_perf": "collective-permute",
}


def took(program, size, ranks=16):
    share, messages = {**NCCL, **OSU}[program][1:]
    return messages * ALPHA + share(ranks) * size / RATE


def nccl(program, times=None, ranks=16, hosts=2, wrong="0", named=True, old=False):
    """Print as nccl-tests does; `old` as before 2.10: no root, an error, no redop."""
    redop = NCCL[program][0]
    times = times or {size: took(program, size, ranks) for size in SIZES}
    start = f"# Collective test starting: {program}\n" * named
    head = "" if old else "# nccl-tests version 2.17.1 nccl-headers=22809\n" + start
    lines = [head + f"# nThread 1 nGpus 1 minBytes {min(times)} maxBytes 9 graph: 0"]
    lines += ["#", "# Using devices"]
    lines += [
        f"#  Rank {rank:2} " + "Group  0 " * (not old) + f"Pid {900 + rank:6} on "
        f"{f'node{rank * hosts // ranks}':>10} device {rank % 8:2} [0000:1b:00] NVIDIA X"
        for rank in range(ranks)
    ]
    column = "error" if old else "#wrong"
    block = f"time   algbw   busbw {column}"
    root = "" if old else "  root"
    lines += [f"#   size   count  type  redop {root}   {block}    {block}"]
    lines += ["#   (B)  (elements)    (us)  (GB/s)  (GB/s)   (us)  (GB/s)  (GB/s)"]
    inside = "N/A" if program in ("alltoall_perf", "sendrecv_perf") else wrong
    for size, seconds_ in times.items():
        cells = ["" if redop == "none" else redop] if old else [redop, "-1"]
        us = f"{1e6 * seconds_:.6g}"
        slow = f"{3e6 * seconds_:.6g}" if inside == "N/A" and wrong != "N/A" else us
        cells += [us, "0.00", "0.00", "3e-07" if old else wrong]
        cells += [slow, "0.00", "0.00", "3e-07" if old and inside != "N/A" else inside]
        lines.append(f"{size:12} {size // 4:12}    float  " + "  ".join(cells))
        lines.append("node0:900:912 [0] NCCL INFO something else")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def osu(program, times=None, ranks=16, full=False):
    """Print as OSU does; `full` with all columns and a validation."""
    title = OSU[program][0]
    times = times or {size: took(program, size, ranks) for size in SIZES}
    lines = [f"# OSU MPI-CUDA {title} Test v7.4", "# Datatype: MPI_CHAR."]
    more = "  Min Latency(us)  Max Latency(us)  Iterations  Validation" * full
    lines += ["# Size       Avg Latency(us)" + more]
    for size, seconds_ in times.items():
        cells = f"{size:<10} {1e6 * seconds_:12.2f}"
        lines.append(cells + "    1.00   9999.00   1000  Pass" * full)
    return "\n".join([*lines, ""])


def bandwidth(gap=2e-6):
    lines = ["# OSU MPI Bandwidth Test v7.4", "# Size      Bandwidth (MB/s)"]
    rows = (f"{s}  {1e-6 * s / (gap + s / RATE):.2f}" for s in SIZES)
    return "\n".join([*lines, "0  0.00", *rows, ""])


@pytest.fixture
def read(capsys, tmp_path):
    """Write texts as files, read them, and return the code, the object, the errors."""

    def run(*texts, words=(), cluster="dgx-h100", name="run"):
        files = [tmp_path / f"{name}{i}.txt" for i in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        out = tmp_path / "cluster.json"
        chosen = ("--cluster", cluster) if cluster else ()
        again = ("-o", out, "--force", "--json")
        argv = ("calibrate", "read", *files, *chosen, *again, *words)
        code = main([str(word) for word in argv])
        printed = capsys.readouterr()
        return code, json.loads(printed.out or "null"), printed.err

    return run


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("program", list(NCCL))
def test_nccl_tests_give_the_numbers_that_they_were_printed_from(read, program, old):
    code, told, err = read(nccl(program, old=old), name=f"{program}_")
    assert (code, err) == (0, "")
    assert told["level"] == "pod"
    assert told["alpha"]["value"] == pytest.approx(ALPHA, rel=1e-3)
    assert told["bandwidth"]["value"] == pytest.approx(RATE, rel=1e-3)
    assert told["spread"] < 1e-3
    assert (told["ranks"], told["hosts"]) == (16, ["node0", "node1"])
    assert told["switches"] == []


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("program", list(OSU))
def test_osu_gives_the_numbers_that_it_was_printed_from(read, program, full):
    ranks = 2 if program == "osu_latency" else 16
    times = {s: took(program, s, ranks) for s in SIZES}
    words = ("--level", "pod", "--ranks", ranks)
    code, told, err = read(osu(program, times, ranks, full), words=words)
    assert (code, err) == (0, "")
    assert told["alpha"]["value"] == pytest.approx(ALPHA, rel=5e-3)
    assert told["bandwidth"]["value"] == pytest.approx(RATE, rel=5e-3)
    assert told["notes"].count("the results were not looked at") == (not full)


@pytest.mark.parametrize("program", list(KINDS))
def test_the_oracle_predicts_the_times_that_were_read(read, tmp_path, program):
    """On a level that is oversubscribed, too."""
    tree = json.loads(load_cluster("dgx-h100").to_json())
    tree["levels"][1]["oversubscription"] = {"value": 2, "origin": "given: a test"}
    (tmp_path / "mine.json").write_text(json.dumps(tree))
    code, _, _ = read(nccl(program), cluster=tmp_path / "mine.json")
    assert code == 0
    group = link_group(
        load_cluster(str(tmp_path / "cluster.json")),
        MeshPlacement(mesh=MeshShape(data=16)),
        ["data"],
    )
    for size in (1 << 14, 1 << 28):
        predicted = collective_seconds(KINDS[program], size, 1, group)
        assert predicted == pytest.approx(took(program, size), rel=2e-3)


def test_the_rest_of_the_cluster_stays_and_origins_name_the_file(read, tmp_path):
    read(nccl("all_reduce_perf"))
    was = dict(load_cluster("dgx-h100").numbers())
    now = dict(load_cluster(str(tmp_path / "cluster.json")).numbers())
    changed = {path for path, number in now.items() if number != was[path]}
    assert changed == {"levels.pod.alpha", "levels.pod.bandwidth"}
    origin = now["levels.pod.alpha"].origin
    assert origin.startswith("measured: nccl-tests all_reduce_perf, run0.txt, 16 ranks")
    assert "spread 0.0%" in origin


def test_ranks_of_one_host_measure_the_host(read):
    _, told, _ = read(nccl("all_reduce_perf", ranks=8, hosts=1))
    assert told["level"] == "host"


def test_ranks_of_several_hosts_measure_what_is_between_them(read):
    """Four ranks would fit into one host of eight."""
    _, told, _ = read(nccl("all_reduce_perf", ranks=4, hosts=4))
    assert told["level"] == "pod"
    assert any("with all its devices" in note for note in told["notes"])


def test_in_place_is_left_out_where_it_has_no_right_result(read):
    """The text has it three times as slow."""
    _, told, _ = read(nccl("alltoall_perf"))
    assert len(told["timings"]) == len(SIZES)
    _, told, _ = read(nccl("alltoall_perf", wrong="N/A"))
    assert len(told["timings"]) == 2 * len(SIZES)
    assert "the results were not looked at" in told["notes"]


def test_several_programs_of_the_same_ranks_are_one_line(read):
    code, told, _ = read(nccl("all_reduce_perf") + nccl("all_gather_perf"))
    assert (code, told["programs"]) == (0, ["all_reduce_perf", "all_gather_perf"])
    assert told["bandwidth"]["value"] == pytest.approx(RATE, rel=1e-3)


def test_a_window_of_messages_tells_a_bandwidth_alone(read):
    code, told, _ = read(bandwidth(), words=("--level", "pod"))
    assert code == 0
    assert told["bandwidth"]["value"] == pytest.approx(RATE, rel=5e-3)
    assert told["alpha"] == load_cluster("dgx-h100").levels[1].alpha.tree()
    assert "alpha stays" in told["notes"][0]


def stepped(noise=0.0):
    """Print all-reduces that take another algorithm from 4 MiB on."""
    times = {}
    for i, size in enumerate(1 << power for power in range(10, 31)):
        rate, start = (20e9, 60e-6) if size < 1 << 22 else (300e9, 300e-6)
        times[size] = (start + 1.875 * size / rate) * (1 + noise * (-1) ** i)
    return times


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_switch_of_algorithm_is_found_where_it_is(read, noise):
    code, told, _ = read(nccl("all_reduce_perf", stepped(noise)))
    assert code == 0
    (switch,) = told["switches"]
    assert (switch["below"], switch["above"]) == (1 << 21, 1 << 22)
    assert switch["small"]["bandwidth"] == pytest.approx(20e9, rel=0.1)
    assert switch["large"]["bandwidth"] == pytest.approx(300e9, rel=0.1)
    assert switch["spread"] < told["spread"] / 2


def test_noise_is_no_switch():
    """A line with 10 % up and down, alternating or in no order."""
    for signs in (
        [1, -1] * 8,
        [1, 1, -1, 1, -1, -1, 1, -1, -1, 1, 1, -1, 1, -1, 1, -1],
    ):
        sizes = [1 << (10 + i) for i in range(len(signs))]
        timed = [
            CollectiveTiming(
                kind="collective-permute",
                payload=size,
                seconds=(ALPHA + size / 1e9) * (1 + 0.1 * sign),
            )
            for size, sign in zip(sizes, signs, strict=True)
        ]
        sized = list(zip(sizes, timed, strict=True))
        assert (
            find_algorithm_switch("osu_latency", sized, 2, fit_alpha_beta(timed, 2))
            is None
        )


def test_a_table_for_people(capsys, tmp_path):
    (tmp_path / "run.txt").write_text(nccl("all_reduce_perf", stepped()))
    words = (
        "read",
        tmp_path / "run.txt",
        "--cluster",
        "dgx-h100",
        "-o",
        tmp_path / "c.json",
    )
    assert main(["calibrate", *map(str, words)]) == 0
    written = (tmp_path / "c.json").read_bytes()
    assert main(["calibrate", *map(str, words)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert (tmp_path / "c.json").read_bytes() == written
    assert main(["calibrate", *map(str, words), "--force"]) == 0
    out = capsys.readouterr().out
    for word in (
        "16 ranks on 2 hosts",
        "spread",
        "switch",
        "assumed: a send",
        "c.json",
    ):
        assert word in out


NOISE = {
    size: took("all_reduce_perf", size) * (6 if i % 2 else 1)
    for i, size in enumerate(SIZES)
}
REDUCE = nccl("all_reduce_perf")


@pytest.mark.parametrize(
    ("texts", "words", "said"),
    [
        ([REDUCE], ("--level", "pot"), "did you mean pod"),
        ([REDUCE], ("--level", "host"), "not within one host"),
        (
            [nccl("all_reduce_perf", ranks=4, hosts=4)],
            ("--level", "host"),
            "several hosts",
        ),
        ([nccl("all_reduce_perf", ranks=8, hosts=1)], ("--level", "pod"), "one host"),
        ([REDUCE], ("--cluster", "dgx-h10"), "did you mean dgx-h100"),
        ([REDUCE], ("--cluster", "testbed"), "the machine that was"),
        ([REDUCE], ("--ranks", 8), "without --ranks"),
        ([REDUCE, nccl("all_gather_perf", ranks=8, hosts=1)], (), "different ranks"),
        (
            [REDUCE.replace("Group  0 Pid    901", "Group  1 Pid    901")],
            (),
            "groups 0, 1",
        ),
        ([REDUCE.replace("Rank  1", "Rank  0")], (), "MPI=1"),
        ([nccl("all_reduce_perf", wrong="4")], (), "wrong results"),
        ([REDUCE.replace("values : 0 OK", "values : 2 FAILED")], (), "2 FAILED"),
        ([nccl("all_reduce_perf", {8: 1e-5, 16: 1e-5})], (), "too few sizes"),
        ([nccl("all_reduce_perf", {8: 1e-5, 16: 1e-5, 64: 1e-5})], (), "too small"),
        ([nccl("all_reduce_perf", NOISE)], (), "--allow-noisy"),
        ([nccl("all_reduce_perf", named=False)], (), "--program"),
        ([REDUCE], ("--program", "all_reduce_pref"), "did you mean all_reduce_perf"),
        ([REDUCE.replace("all_reduce", "hypercube")], (), "hypercube_perf is not read"),
        ([osu("osu_allreduce")], ("--level", "pod"), "--ranks 16"),
        ([osu("osu_allreduce")], ("--ranks", 8), "--level pod"),
        ([osu("osu_latency")], ("--ranks", 4, "--level", "pod"), "two ranks"),
        (
            [osu("osu_latency") + bandwidth()],
            ("--level", "pod"),
            "osu_bw is read alone",
        ),
        ([osu("osu_allreduce").replace("Allreduce", "Broadcast")], (), "not read"),
        ([osu("osu_allreduce").replace("MPI-CUDA A", "MPI_A")], (), "not read"),
        (
            [osu("osu_allreduce", full=True).replace("Pass", "Fail", 1)],
            ("--ranks", 16),
            "Fail",
        ),
        ([REDUCE], ("-o", "no/such/c.json"), "no folder"),
        (["size time\n1 2\n"], (), "no form that is read"),
        (
            [
                nccl(
                    "all_reduce_perf",
                    {s: took("all_reduce_perf", s) / 9 for s in SIZES},
                )
            ],
            (),
            "above its ports",
        ),
    ],
)
def test_what_cannot_be_is_refused(read, tmp_path, texts, words, said):
    code, told, err = read(*texts, words=words)
    assert (code, told) == (2, None)
    assert said in err
    assert not (tmp_path / "cluster.json").exists()


def test_a_cluster_and_a_file_are_needed(read, capsys, tmp_path):
    code, _, err = read(REDUCE, cluster=None)
    assert code == 2
    assert "--cluster dgx-h100" in err
    words = ["calibrate", "read", str(tmp_path / "run.text"), "--cluster", "dgx-h100"]
    assert main(words) == 2
    assert "did you mean" in capsys.readouterr().err


def test_what_is_noisy_is_taken_where_that_is_said(read):
    code, told, _ = read(nccl("all_reduce_perf", NOISE), words=("--allow-noisy",))
    assert code == 0
    assert told["spread"] > 0.35


def test_one_table_of_a_log_is_chosen(read):
    text = osu("osu_latency") + bandwidth() + osu("osu_allreduce")
    words = ("--program", "osu_allreduce", "--ranks", 16)
    code, told, _ = read(text, words=words, cluster="dgx-h100")
    assert (code, told["programs"]) == (0, ["osu_allreduce"])
    code, _, err = read(text, words=("--program", "osu_alltoall"))
    assert code == 2
    assert "it has osu_allreduce, osu_latency, osu_bw" in err


def test_the_files_that_the_page_shows(read):
    code, told, _ = read((DATA / "all_reduce_perf.txt").read_text())
    (switch,) = told["switches"]
    assert (code, switch["below"], switch["above"]) == (0, 1 << 22, 1 << 24)
    latency = (DATA / "osu_latency.txt").read_text()
    code, told, _ = read(latency, words=("--level", "pod"))
    assert code == 0
    assert told["alpha"]["value"] == pytest.approx(2.3e-6, rel=0.02)


TAGS = {
    "none": "",
    "mpirun 4": "[1,{}]<stdout>:",
    "mpirun 5": "[prterun-node0-7@1,{}]<stdout>: ",
    "srun": "{:2}: ",
    "mpiexec": "[{}] ",
    "kubectl": "[pod/nccl-worker-{}-abcde/worker] ",
    "kubectl with times": "[pod/nccl-worker-{}/worker] 2026-03-04T10:00:00.12345{}Z ",
    "times": "2026-03-04T10:00:0{}+01:00 ",
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*NCCL, *OSU]),
    st.sampled_from(list(TAGS)),
    st.sampled_from(["\n", "\r\n"]),
    st.lists(st.integers(1, 9), max_size=20),
)
def test_what_launchers_put_before_lines_changes_nothing(
    tmp_path_factory, program, tag, end, others
):
    """Lines of other ranks stand between those of the one that prints the table."""
    text = nccl(program) if program in NCCL else osu(program)
    folder = tmp_path_factory.mktemp("logs")
    lines = []
    for place, line in enumerate(text.splitlines()):
        lines.append(TAGS[tag].format(0, place % 10) + line)
        if place < len(others):
            rank = others[place]
            said = f"node1:77:78 [{rank}] NCCL INFO Channel 0{rank}/0 : 0[0] -> 1[1]"
            lines.append(TAGS[tag].format(rank, place % 10) + said)
    (folder / "plain.txt").write_text(text)
    (folder / "tagged.txt").write_bytes(end.join(lines).encode())
    ranks = None if program in NCCL or program in ("osu_latency",) else 16
    plain, tagged = (
        read_benchmarks([folder / name], ranks=ranks)[0]
        for name in ("plain.txt", "tagged.txt")
    )
    assert tagged == replace(plain, source="tagged.txt")
