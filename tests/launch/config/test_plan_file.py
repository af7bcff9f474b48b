"""A plan file stands for every setting of the plan, none left out."""

import shlex
from types import SimpleNamespace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.core.profile import Profile
from jaxdist.launch.cli.main import main, make_parser
from jaxdist.launch.config.plan_file import (
    check_plan_target,
    load_plan_overrides,
    plan_file_text,
    profiled_plan_file_text,
)
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.meshes.clusters.load import load_cluster

PLANS = {
    "the default": Plan(),
    "stages, compressed": Plan(
        mesh=MeshShape(pipe=2, data=2),
        pipe=PipelineConfig(cuts=("block2",), schedule="gpipe"),
        reduce=ReductionConfig(algorithm="top_k", density=0.05, warmup_steps=3),
        remat=True,
        remat_end="block3",
        microbatches=4,
    ),
    "replicas of stages": Plan(
        mesh=MeshShape(pipe=3),
        pipe=PipelineConfig(schedule="pipedream", replicas=(2, 1)),
    ),
    "images until a block, an idle axis": Plan(
        mesh=MeshShape(spatial_h=2, tensor=2, replica=2),
        spatial_end="head",
        spatial_end_mode="samples",
        tensor_strategy="filter",
        replicated_axes=("replica",),
    ),
    "an outer loop, ranks by part": Plan(
        mesh=MeshShape(replica=2, data=2),
        outer=OuterConfig(sync_interval=50, momentum=0.8, fragments=2),
        reduce=ReductionConfig(algorithm="power", ranks=("block1:2", "head:3")),
        shuffle=ShuffleConfig(exchange_fraction=0.1),
        zero=1,
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_file_is_every_value_of_the_plan(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    words = load_plan_overrides(str(path))
    config = resolve_config("digits", list(words)).config
    assert config.plan == plan
    assert config.optim.accumulate == (plan.microbatches or 1)


def test_values_of_a_whole_plan_are_said_to_be_its_own(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(Plan(mesh=MeshShape(data=2)).to_json())
    whole = resolve_config("digits", [*load_plan_overrides(str(path)), "seed=1"])
    assert whole.describe("plan.mesh.data") == "plan.mesh.data = 2 (the plan)"
    counts = whole.count_sources()
    typed = resolve_config("digits", ["plan.mesh.data=2", "seed=1"])
    assert counts["the plan"] == sum(key.startswith("plan.") for key in typed.sources)
    assert counts["command line"] == 1
    assert typed.describe("plan.mesh.data") == "plan.mesh.data = 2 (command line)"


def test_microbatches_that_a_plan_does_not_have_are_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(Plan(microbatches=4).to_json())
    with pytest.raises(BadInput, match="another number of microbatches") as caught:
        resolve_config(
            "digits", [*load_plan_overrides(str(path)), "optim.accumulate=2"]
        )
    assert "optim.accumulate=4" in caught.value.remedy


def test_what_is_no_plan_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    (tmp_path / "plans.json").touch()
    with pytest.raises(BadInput, match="cannot be read") as missing:
        load_plan_overrides(str(path))
    assert missing.value.remedy == (f"did you mean {tmp_path / 'plans.json'}?",)
    for text, said in (
        ("[1", "is no plan"),
        ("[1]", "a plan is no list"),
        ('{"mesh": 2}', "plan.mesh is no int"),
        ('{"pipe": []}', "plan.pipe is no list"),
        ('{"mesh": {"data": "two"}}', "plan.mesh.data is no number of devices"),
        ('{"mesh": {"dta": 2}}', "plan.mesh has no field dta"),
        ('{"msh": {}}', "a plan has no field msh"),
    ):
        path.write_text(text)
        with pytest.raises(BadInput, match=said):
            load_plan_overrides(str(path))


MACHINE = SimpleNamespace(name="mine")


def made(tmp_path, *words):
    path = tmp_path / "plan.json"
    path.write_text(
        plan_file_text(Plan(), resolve_config("digits", list(words)), MACHINE)
    )
    return path


def test_a_plan_file_says_what_it_is_for_and_is_the_same_plan(tmp_path):
    path = made(tmp_path, "data.batch=32")
    assert Plan.from_json(path.read_text()) == Plan()
    check_plan_target(
        str(path), resolve_config("digits", ["data.batch=32", "optim.lr=1"])
    )
    path.write_text(Plan().to_json())  # another file says nothing of it
    check_plan_target(str(path), resolve_config("digits", ["data.batch=64"]))


def test_a_plan_of_another_network_or_batch_says_what_changed(tmp_path):
    path = made(tmp_path, "data.batch=32")
    with pytest.raises(BadInput) as error:
        check_plan_target(str(path), resolve_config("digits", ["data.batch=64"]))
    assert error.value.values == "data.batch = 64, the plan's 32"
    assert "data.batch=32" in error.value.remedy
    with pytest.raises(BadInput, match=r"model.name = vgg16, the plan's resnet8"):
        check_plan_target(str(path), resolve_config("vgg16", ["data.batch=32"]))


def test_a_plan_of_another_version_says_which(tmp_path):
    path = made(tmp_path)
    path.write_text(path.read_text().replace('"0.', '"99.', 1))
    with pytest.raises(BadInput, match=r"made by 99\."):
        check_plan_target(str(path), resolve_config("digits", []))


def test_a_plan_of_another_cluster_is_refused_where_the_cluster_is_known(tmp_path):
    path = made(tmp_path)
    given = resolve_config("digits", [])
    with pytest.raises(BadInput, match="another cluster") as error:
        check_plan_target(str(path), given, load_cluster("abci"))
    assert f"--cluster {MACHINE.name}" in error.value.remedy
    check_plan_target(str(path), given, MACHINE)
    check_plan_target(str(path), given)


@pytest.fixture
def remedy(tmp_path):
    """A plan's file, what it shall be used for, and the words that make it anew."""
    path, before = tmp_path / "plan.json", resolve_config("digits", ["data.batch=32"])
    path.write_text(plan_file_text(Plan(), before, load_cluster("testbed")))
    one_device = "plan.mesh.data=1", "plan.mesh.spatial_h=1"
    given = resolve_config("digits", ["data.batch=64", *one_device])
    with pytest.raises(BadInput) as error:
        check_plan_target(str(path), given)
    _, *words = shlex.split(error.value.remedy[1])
    return str(path), given, words


def test_the_remedy_has_all_that_a_search_needs(remedy):
    path, _, (command, *words) = remedy
    args = make_parser(command).parse(words)
    assert (args.cluster, args.devices) == ("testbed", (1,))
    assert (str(args.output), args.force) == (path, True)
    assert tuple(args.overrides) == ("data.batch=64",)


@pytest.mark.slow
def test_the_remedy_makes_the_plan_that_was_meant(remedy, capsys):
    path, given, words = remedy
    assert main(words) == 0, capsys.readouterr().err
    check_plan_target(path, given)


def test_a_training_with_a_plan_of_something_else_is_refused(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    path = made(tmp_path)
    assert main(["train", "digits", "--plan", str(path), "data.batch=8"]) == 2
    assert "made for something else" in capsys.readouterr().err


class TestStages:
    @pytest.fixture
    def stages(self, tmp_path):
        profile = Profile(
            model="resnet8", inputs=("float32[8,8,8,1]",), batch=8, layers=()
        )
        plan = Plan(mesh=MeshShape(pipe=2), pipe=PipelineConfig(cuts=("block2",)))
        path = tmp_path / "plan.json"
        path.write_text(profiled_plan_file_text(plan, profile, "digits.json", None))
        assert Plan.from_json(path.read_text()) == plan
        return str(path)

    def test_stages_of_the_same_network_and_microbatch_go_with_it(self, stages):
        words = ["data.batch=96", "optim.accumulate=12"]
        check_plan_target(
            stages, resolve_config("digits", words), load_cluster("testbed")
        )

    @pytest.mark.parametrize(
        ("words", "said", "remedy"),
        [
            (
                ["data.batch=96", "optim.accumulate=8"],
                "96 / 8 samples, the profile's 8",
                "data.batch=64",
            ),
            (
                ["data.batch=96", "optim.accumulate=12", "precision=float64"],
                "precision = float64, the plan's float32",
                "precision=float32",
            ),
            (
                ["data.batch=96", "optim.accumulate=12", "model.name=alexnet"],
                "model.name = alexnet, the plan's resnet8",
                "model.name=resnet8",
            ),
        ],
    )
    def test_others_are_refused_with_what_changed(self, stages, words, said, remedy):
        with pytest.raises(BadInput, match="was made for") as caught:
            check_plan_target(stages, resolve_config("digits", words))
        assert said in caught.value.values
        assert caught.value.remedy[0] == remedy
        again = "jaxdist plan stages --profile digits.json --workers 2 "
        assert caught.value.remedy[1].startswith(again)
        assert "..." not in caught.value.remedy[1]
