"""Sections of a run that was stopped, re-planned, mixed and scaled, from its files."""

import json
import re

import pytest
from sample_runs import (
    DOT,
    drifts,
    exchanged,
    moves,
    put_everything,
    scored,
    sits_again,
    study,
)

from jaxdist.core.errors import BadInput
from jaxdist.launch.report import (
    goodput,
    learning_curves,
    samples_section,
    scaling_section,
    traffic,
    write_report,
)
from jaxdist.launch.report.run_record import read_run_data


def record(sample):
    return read_run_data(sample.write())


def said(sentence):
    return re.sub("<[^>]*>", "", str(sentence))


def section(path, name):
    text = path.read_text(encoding="utf-8").replace("&nbsp;", " ")
    return text.partition(f'<section id="{name}">')[2].partition("</section>")[0]


class TestCurves:
    def names(self, sample):
        return {f.name: f for f in learning_curves.learning_figures(record(sample))}

    def test_steps_have_epochs_below_and_a_throughput(self, sample):
        found = self.names(sample)
        assert 'data-epoch="22.4531"' in found["Loss"].svg
        rates, unit = learning_curves.throughput(record(sample))
        assert unit == "samples/s"
        assert rates[0] == (1, 64 / sample.train[0]["step_s"])
        assert "Throughput: 1,7" in found["Throughput"].svg

    def test_a_language_model_has_tokens_and_perplexity(self, sample):
        sample.lock["values"]["model.name"]["value"] = "gpt2_small"
        sample.lock["values"]["data.name"]["value"] = "text"
        for row in sample.tests:
            row["answers"] = 128 * row["samples"]
        found = self.names(sample)
        assert "Test perplexity" in found
        assert found["Throughput"].unit == "tokens/s"
        assert found["Test accuracy"].unit.startswith("tokens")
        rates, _ = learning_curves.throughput(record(sample))
        assert rates[0][1] == 128 * 64 / sample.train[0]["step_s"]

    def test_documents_have_one_perplexity_that_of_all_tokens(self, sample):
        sample.lock["values"]["model.name"]["value"] = "llama"
        for row in sample.tests:
            row |= {"answers": 128 * row["samples"], "perplexity": 7.5}
        found = self.names(sample)
        assert "7.5 at the end" in found["Test perplexity"].svg
        assert "perplexity" not in found

    def test_an_accuracy_of_masks_is_one_of_pixels(self, sample):
        for row in sample.tests:
            row |= {"answers": 256 * row["samples"], "mean_iou": 0.5}
        found = self.names(sample)
        assert found["Test accuracy"].unit == "pixels classified right, %"
        assert found["Throughput"].unit == "samples/s"

    def test_memory_is_that_of_the_process_and_of_its_devices(self, sample):
        assert "Memory" not in self.names(sample)
        for row in sample.train:
            row["host_memory_bytes"] = 1_000_000_000 + 1_000_000 * row["step"]
        assert "host, 1.67 at the end" in self.names(sample)["Memory"].svg
        for row in sample.train:
            row["device_memory_bytes"] = 3_000_000_000
        svg = self.names(sample)["Memory"].svg
        assert "host, 1.67 at the end" in svg
        assert "device, 3 at the end" in svg

    def test_the_norm_of_the_gradient_is_drawn_beside_what_it_was_clipped_to(
        self, sample
    ):
        assert "Gradient norm" not in self.names(sample)
        # Of several steps a point has the longest: one that was too long is in sight.
        for row in sample.train:
            row["gradient_norm"] = 8.0 if row["step"] == 100 else 0.5
        found = self.names(sample)["Gradient norm"].svg
        assert "0.5 at the end" in found
        values = re.search('data-values="([^"]*)"', found)[1].split()
        assert max(float(each.split(",")[1]) for each in values) == 8
        assert "clipped to" not in found
        sample.lock["values"]["optim.clip"] = {"value": 2.0, "by": "command line"}
        assert "clipped to 2" in self.names(sample)["Gradient norm"].svg

    def test_experts_have_the_share_of_the_busiest_and_what_is_dropped(self, sample):
        for row in sample.train:
            row |= {"busiest_expert_share": 0.25, "dropped_share": 0.0}
        found = self.names(sample)
        assert "busiest expert, 25.0 at the end" in found["Routing"].svg
        assert "dropped" not in found["Routing"].svg
        assert not {"busiest_expert_share", "dropped_share"} & found.keys()
        for row in sample.train:
            row["dropped_share"] = 0.125
        assert "dropped, 12.5 at the end" in self.names(sample)["Routing"].svg

    def test_metrics_of_its_own_are_drawn_by_their_names(self, sample):
        for row in sample.train:
            row["weight_norm"] = 3.0
        for row in sample.tests:
            row["top5"] = 0.9
        found = self.names(sample)
        assert (found["weight_norm"].unit, found["top5"].unit) == ("training", "test")

    def test_a_batch_that_was_changed_leaves_no_throughput_and_no_epochs(self, sample):
        change = {"step": 9, "changes": {"data.batch": [32, 64]}}
        sample.lock["attempts"] = [{"step": 0}, change]
        found = self.names(sample)
        assert "Throughput" not in found
        assert "data-epoch" not in found["Loss"].svg


class TestBytes:
    def test_without_a_cluster_no_link_is_named(self, sample):
        moves(sample)
        found = traffic.traffic_section(record(sample))
        assert found.links is None
        assert [line.link for line in found.lines] == ["", ""]
        assert "jaxdist bytes digits --wire" in found.how

    def test_a_cluster_says_which_links_carry_what(self, everything):
        text = section(everything, "bytes")
        assert "Links of level host carry 85.1 %" in text
        assert "net, 3.84 ms at their rate" in text  # 96 kB at 25 MB/s
        assert "collective-permute, pipe" in text
        assert "ledger 64.0 kB, compiled step 64.0 kB" in text
        assert 'class="p t-pipe"' in text  # a formula is hollow
        assert 'class="m half t-pipe"' in text  # the program half tone

    def test_a_summary_from_before_collectives_were_kept_has_its_terms(self, sample):
        found = traffic.traffic_section(record(sample))
        assert (len(found.terms.rows), found.lines) == (3, [])


class TestGoodput:
    def test_one_attempt_is_a_line(self, sample):
        found = record(sample)
        assert goodput.goodput_section(found) is None
        assert "in one attempt: nothing was done again" in said(
            goodput.goodput_caption(found)
        )

    def test_steps_done_again_and_the_time_between_are_told_apart(self, sample):
        sits_again(sample, 200, behind=12)
        found = record(sample)
        shown = goodput.goodput_section(found)
        first, second = shown.lines
        assert (first.steps, first.lost, first.ended) == ("1 to 200", "12", "went down")
        assert (second.steps, second.gap, second.ended) == (
            "189 to 674",
            "15.0 s",
            "done",
        )
        names = [row.name for row in shown.rest.rows]
        assert {"between attempts", "steps done again"} <= {*names}
        assert "for a new plan" not in names
        assert sum(goodput._parts_s(found).values()) == pytest.approx(
            found.goodput.wall_s
        )

    def test_a_attempt_that_ended_in_its_compile_made_no_step(self, sample):
        sits_again(sample, 200)
        begun = next(n for n, s in enumerate(sample.spans) if s.get("begin"))
        killed = sample.spans[begun] | {"start": sample.spans[begun]["start"] - 10}
        sample.spans.insert(begun, killed)
        _, second, third = goodput.goodput_section(record(sample)).lines
        assert (second.steps, second.ended) == ("none", "before its first step")
        assert third.gap == "10.0 s"

    def test_a_change_of_plan_is_no_restart(self, sample):
        ended = sits_again(sample, 400)
        sample.write()
        rows = drifts(ended - 20)[:3]
        sample.put("drift.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        shown = goodput.goodput_section(read_run_data(sample.folder))
        assert [line.ended for line in shown.lines] == ["for plan pipe 4", "done"]
        names = [row.name for row in shown.rest.rows]
        assert ("for a new plan" in names, "between attempts" in names) == (True, False)


class TestChanges:
    def test_each_drift_has_its_reason_its_plans_and_its_steps(self, everything):
        text = section(everything, "changes")
        assert "Steps drifted <b>twice</b>" in text
        assert "under another plan <b>once</b>" in text
        for words in (
            "the link of rank 2",
            "pipe 2 x data 2 to pipe 4",
            "700 ms",
            "2.1 s",
        ):
            assert words in text
        assert "links and devices as at the start" in text
        assert "none sought" in text

    def test_after_is_measured_in_the_attempt_that_came_of_it(self, sample, compared):
        for row in sample.train:
            row["step_s"] = 0.5 if row["step"] <= 400 else 0.2
        put_everything(sample, compared)
        first, second = goodput.replan_rows(read_run_data(sample.folder))
        assert (first.before, first.drifted, first.after) == (
            "700 ms",
            "2.1 s",
            "200 ms",
        )
        assert second.after == ""

    def test_without_a_drift_it_says_what_looks(self, sample):
        assert "--cluster NAME --adapt" in said(goodput.replan_caption(record(sample)))

    def test_a_line_that_was_cut_off_is_left_out(self, sample):
        sample.write()
        sample.put("drift.jsonl", json.dumps(drifts(0.0)[0]) + '\n{"kind": "rea')
        (change,) = read_run_data(sample.folder).changes
        assert (change.why, change.changed) == ("", False)


class TestScaling:
    def put(self, sample, **more):
        folder = sample.write().parent / "study"
        folder.mkdir()
        (folder / "scale.json").write_text(json.dumps(study() | more))
        return read_run_data(sample.folder)

    def test_the_study_of_the_same_experiment_is_found_beside(self, sample):
        found = self.put(sample)
        text = said(scaling_section.scaling_caption(found))
        assert text.startswith("4 processes make 2,863 samples/s with batch 64, 49.6 %")
        shown = scaling_section.scaling_section(found)
        assert [figure.name for figure in shown.figures] == ["Throughput", "Efficiency"]
        assert "ring, 39 %" in shown.figures[1].svg
        assert len(shown.lines) == 5
        assert "communication 30.0 %" in shown.fits[0]

    def test_the_study_of_another_one_is_not(self, sample):
        found = self.put(sample, experiment="vgg16")
        text = "Not measured: jaxdist scale digits --processes 1,2."
        assert said(scaling_section.scaling_caption(found)) == text
        assert scaling_section.scaling_section(found) is None

    def test_runs_that_failed_leave_what_there_is(self, sample):
        alone = study()["runs"][:1]
        found = self.put(sample, runs=alone, fits=[])
        assert scaling_section.scaling_section(found).figures == []
        assert "1 process makes" in said(scaling_section.scaling_caption(found))
        assert scaling_section.scaling_section(self.again(found, [])) is None

    def test_without_the_run_that_all_are_held_against_it_draws_rates_alone(
        self, sample
    ):
        runs = [one | {"efficiency": None} for one in study()["runs"][1:]]
        found = self.put(sample, runs=runs, fits=[])
        (figure,) = scaling_section.scaling_section(found).figures
        assert figure.name == "Throughput"
        assert "efficient" not in said(scaling_section.scaling_caption(found))

    def test_each_way_is_named_with_its_own_most_processes(self, sample):
        runs = [one for one in study()["runs"] if one["run"] != "p4-ring"]
        rates, _ = scaling_section.scaling_section(self.put(sample, runs=runs)).figures
        assert "ring, 1,984 at 2" in rates.svg
        assert "int8, 2,863 at 4" in rates.svg

    def test_a_study_that_is_damaged_is_named(self, sample):
        self.put(sample, place={})
        with pytest.raises(BadInput, match=r"study/scale\.json"):
            write_report(sample.folder)

    def test_a_file_that_is_no_study_is_passed_over(self, sample):
        file = sample.write().parent / "scale.json"
        file.write_text("{}")
        assert scaling_section.scaling_section(read_run_data(sample.folder)) is None

    @staticmethod
    def again(found, runs):
        vars(found)["study"] = found.study | {"runs": runs}
        return found


class TestShuffle:
    def test_measured_stands_beside_forecast(self, sample):
        sample.write()
        sample.put("shuffle.json", json.dumps(exchanged()))
        found = read_run_data(sample.folder)
        text = said(learning_curves.mixing_caption(found))
        assert text.startswith("A partition exchanged 9 of its 89 samples an epoch")
        assert "0.849 at first" in text
        names = [
            figure.name for figure in learning_curves.mixing_section(found).figures
        ]
        assert names == ["Samples at home", "Class distance"]

    def test_what_a_run_writes_is_measured_where_an_epoch_began(self):
        rows = exchanged()["measured"]
        assert [row["epoch"] for row in rows] == [0, 1, 2, 4, 8, 16, 29]
        assert rows[0]["home"] == 1
        for row in rows:
            assert row["home"] == pytest.approx(row["home_forecast"], abs=0.03)
            assert row["distance"] == pytest.approx(row["distance_forecast"], abs=0.03)

    def test_an_order_from_all_samples_is_a_line(self, sample):
        text = said(learning_curves.mixing_caption(record(sample)))
        assert "jaxdist data quality digits" in text


class TestSamples:
    def page(self, sample, **more):
        sample.write()
        sample.put("samples.json", json.dumps(scored(**more)))
        return section(write_report(sample.folder), "samples")

    def test_labels_are_held_against_predictions(self, sample):
        text = self.page(sample)
        assert "<b>86 of 90</b> held-out samples right" in text
        assert "<b>1</b> is taken for <b>0</b>: 4 times, 13.8 % of it" in text
        assert "<title>label 1, predicted 0: 4</title>" in text
        assert text.count("<rect") == 4
        assert "90 samples, evenly out of 360 held out" in text
        assert f"data:image/png;base64,{DOT}" in text
        assert "loss 3.25; 3.9 % for its label; sample 7" in text

    def test_labels_have_the_names_of_the_data(self, sample):
        text = self.page(sample, class_names=["cat", "<dog>", "a horse"])
        assert "<title>label &lt;dog&gt;, predicted cat: 4</title>" in text
        assert "a ho\u2026" in text
        assert "<b>&lt;dog&gt;</b> taken for <b>cat</b>" in text

    @pytest.mark.parametrize(
        ("names", "found"), [([], "class 1 with"), (["nothing", "cell"], "class cell")]
    )
    def test_the_background_is_no_class_that_is_found(self, sample, names, found):
        overlaps = [
            {"label": label, "mask": 8, "answer": 8, "both": 4} for label in (0, 1)
        ]
        self.page(sample, confusion=[], worst=[], overlaps=overlaps, class_names=names)
        text = said(samples_section.samples_caption(read_run_data(sample.folder)))
        assert f"finds {found}" in text
        assert text.count("with a Dice") == 1

    def test_of_many_labels_those_confused_most_are_named(self, sample):
        right = [{"label": n, "predicted": n, "samples": 3} for n in range(30)]
        wrong = [{"label": n, "predicted": 0, "samples": n} for n in range(1, 30)]
        text = self.page(sample, confusion=[*right, *wrong])
        assert "<svg" not in text
        assert text.count('data-l="Taken for"') == 10
        assert text.index(">29</td>") < text.index(">28</td>")

    def test_a_language_model_has_texts(self, sample):
        said = {"prompt": "the", "generated": " cat <b>", "written": " dog"}
        text = self.page(sample, confusion=[], worst=[], samples=0, texts=[said])
        assert "<pre> cat &lt;b&gt;</pre>" in text
        assert "<pre> dog</pre>" in text
        assert "<img" not in text

    def test_why_there_are_none_is_said_in_the_fold(self, sample):
        assert self.page(sample, reason="no folder data") == ""
        assert "one by one. no folder data." in sample.folder.joinpath(
            "report.html"
        ).read_text(encoding="utf-8")

    @pytest.mark.parametrize("more", [{"samples": "many"}, {"other": 1}])
    def test_a_file_of_another_version_is_as_good_as_none(self, sample, more):
        assert self.page(sample, **more) == ""
        found = samples_section.samples_caption(read_run_data(sample.folder))
        assert said(found) == "Not scored one by one: jaxdist report digits does."


def test_every_section_of_a_whole_run_is_there(everything):
    names = ("bytes", "changes", "scaling", "shuffle", "goodput")
    assert all("<svg" in section(everything, n) for n in names if n != "changes")


def test_what_has_nothing_to_draw_is_a_sentence_in_a_fold(sample):
    text = write_report(sample.write()).read_text(encoding="utf-8")
    fold = text.partition("<details><summary>In a sentence each")[2]
    for name in ("changes", "scaling", "shuffle", "goodput", "checkpoints"):
        assert f'id="{name}"' not in text
        assert f'href="#{name}"' not in text
    for words in ("--adapt", "jaxdist scale digits", "in one attempt", "Never resumed"):
        assert words in fold
