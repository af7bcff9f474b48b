"""Held-out samples one by one: which labels are confused, the worst ones, and text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_percent
from jaxdist.launch.report.charts import labelled_svg, percent_length, tag
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.run_folder.sample_evaluation import SampleEvaluation, TextSample

_MAX_CLASSES: Final = 20
"""Classes up to which a matrix can be read."""
_MAX_PAIRS: Final = 10
"""Pairs of label and prediction that are named where there are more classes."""
_BACKGROUND: Final = 0
"""Class of pixels that are of nothing."""
_ROW: Final = 26
"""Height of a row of the matrix, pixels."""


@dataclass(frozen=True, kw_only=True)
class SamplesSection:
    """What the section shows."""

    matrix: Markup | None
    pairs: Sequence[tuple[str, str, str, str]]
    """Label, prediction, how many, and the share of the label's samples."""
    worst: Sequence[Mapping[str, str]]
    texts: Sequence[TextSample]
    classes: Sequence[tuple[str, str, str, str]]
    """Class of pixels, its pixels in the masks, Dice and IoU."""
    masks: Sequence[Mapping[str, str]]
    how: str


def samples_caption(record: RunData) -> Markup:
    """Say how many samples are classified right, or why none was looked at."""
    found = record.sample_evaluation
    if found is None:
        text = "Not scored one by one: <code>jaxdist report {}</code> does."
        return Markup(text).format(record.run.name)
    step = format_count(found.checkpoint)
    if found.reason:
        return Markup("Not scored one by one. {}.").format(found.reason.rstrip("."))
    if found.texts:
        return Markup("How checkpoint {} continues held-out text.").format(step)
    if found.overlaps:
        rows = zip(_overlap_rows(found), found.overlaps, strict=True)
        shown = [row for row, each in rows if each.label != _BACKGROUND]
        told = Markup("Of {} held-out images checkpoint {} finds ").format(
            format_count(found.samples), step
        )
        named = [
            Markup("class <b>{}</b> with a Dice of <b>{}</b>").format(name, dice)
            for name, _, dice, _ in shown[:3]
        ]
        more = Markup(", and {} more").format(len(shown) - 3) if shown[3:] else ""
        return told + Markup(", ").join(named or ["no class"]) + more + Markup(".")
    right = sum(c.samples for c in found.confusion if c.label == c.predicted)
    text = "Checkpoint {} classifies <b>{} of {}</b> held-out samples right"
    counts = format_count(right), format_count(found.samples)
    told = Markup(text).format(step, *counts)
    for label, predicted, count, share in _confused_pairs(found)[:1]:
        if count != "1":  # what happened once is no habit
            text = "; most often <b>{}</b> is taken for <b>{}</b>: {} times, {} of it"
            told += Markup(text).format(label, predicted, count, share)
    return told + Markup(".")


def samples_section(record: RunData) -> SamplesSection | None:
    """Return what is shown of single samples; None where none was looked at."""
    found = record.sample_evaluation
    if found is None or found.reason:
        return None
    # Only those that occur: data may have thousands, and the samples be few.
    classes = sorted(
        {n for cell in found.confusion for n in (cell.label, cell.predicted)}
    )
    fits = 0 < len(classes) <= _MAX_CLASSES
    how = f"Computed by jaxdist report from checkpoint {found.checkpoint:,}"
    if found.texts:
        how += ": characters drawn as the network says, at temperature 0.8."
    else:
        how += f" on one device, {format_count(found.samples)} samples"
        if found.samples < found.held_out:
            how += f", evenly out of {format_count(found.held_out)} held out"
        how += ". A picture goes from its darkest to its brightest value."
    if found.masks:
        how += (
            " Of a volume the plane is shown in which most voxels are wrong. Orange "
            "was taken for background, blue is background taken for a class, and "
            "purple one class taken for another."
        )
    return SamplesSection(
        matrix=_draw_matrix(found, classes) if fits else None,
        pairs=() if fits else _confused_pairs(found)[:_MAX_PAIRS],
        worst=[
            {
                "picture": each.picture,
                "id": format_count(each.id),
                "label": _class_name(found, each.label),
                "predicted": _class_name(found, each.predicted),
                "loss": f"{each.loss:.3g}",
                "probability": format_percent(each.probability),
            }
            for each in found.worst
        ],
        texts=found.texts,
        classes=_overlap_rows(found),
        masks=[
            {
                "picture": each.picture,
                "mask": each.mask,
                "answer": each.answer,
                "errors": each.errors,
                "id": format_count(each.id),
                "dice": f"{each.dice:.3f}",
                "wrong": format_percent(each.wrong / each.pixels, 2),
                "plane": f"plane {each.plane} of {each.planes}"
                if each.planes > 1
                else "",
            }
            for each in found.masks
        ],
        how=how,
    )


def _overlap_rows(found: SampleEvaluation) -> list[tuple[str, str, str, str]]:
    """Return class, pixels of the masks, Dice and IoU."""
    return [
        (
            _class_name(found, each.label),
            format_count(each.mask),
            f"{2 * each.both / (each.mask + each.answer):.3f}",
            f"{each.both / (each.mask + each.answer - each.both):.3f}",
        )
        for each in found.overlaps
    ]


def _class_name(found: SampleEvaluation, label: int) -> str:
    names = found.class_names
    return str(names[label]) if 0 <= label < len(names) else str(label)


def _confused_pairs(found: SampleEvaluation) -> list[tuple[str, str, str, str]]:
    """Return the wrong predictions by label, the most frequent first."""
    whole = _label_counts(found)
    wrong = [cell for cell in found.confusion if cell.label != cell.predicted]
    return [
        (
            _class_name(found, cell.label),
            _class_name(found, cell.predicted),
            format_count(cell.samples),
            format_percent(cell.samples / whole[cell.label]),
        )
        for cell in sorted(wrong, key=lambda cell: -cell.samples)
    ]


def _label_counts(found: SampleEvaluation) -> Counter[int]:
    counts: Counter[int] = Counter()
    for cell in found.confusion:
        counts[cell.label] += cell.samples
    return counts


def _draw_matrix(found: SampleEvaluation, classes: Sequence[int]) -> Markup:
    """Draw labels down and predictions across, each cell as dark as it is frequent."""
    place = {label: n for n, label in enumerate(classes)}
    whole = _label_counts(found)
    width, parts = 1 / len(classes), []
    for label, n in place.items():
        name, y = _class_name(found, label), _ROW * n
        short = name if len(name) <= 5 else f"{name[:4]}\u2026"
        line = {"x1": 0, "x2": "100%", "y1": y, "y2": y}
        parts.append(tag("line", class_="grid", **line))
        at = {"x": -8, "y": y + 18, "text_anchor": "end"}
        parts.append(tag("text", tag("title", name), short, class_="tick", **at))
        at = {"x": percent_length((n + 0.5) * width), "y": _ROW * len(classes) + 17}
        look = {"class_": "tick", **at, "text_anchor": "middle"}
        parts.append(tag("text", tag("title", name), short, **look))
    for cell in found.confusion:
        x, y = place[cell.predicted] * width, _ROW * place[cell.label]
        names = _class_name(found, cell.label), _class_name(found, cell.predicted)
        told = f"label {names[0]}, predicted {names[1]}: {cell.samples:,}"
        # Never so dark that the number on it could not be read.
        # The root lifts what is rare.
        shade = round(0.15 + 0.3 * (cell.samples / whole[cell.label]) ** 0.5, 3)
        size = {"width": percent_length(width), "height": _ROW, "fill_opacity": shade}
        fill = "backward" if cell.label == cell.predicted else "data"
        at = {"x": percent_length(x), "y": y}
        parts.append(tag("rect", tag("title", told), class_=f"t-{fill}", **at, **size))
        at = {"x": percent_length(x + width / 2), "y": y + 18}
        number = {"class_": "cell", **at, "text_anchor": "middle"}
        parts.append(tag("text", f"{cell.samples:,}", **number))
    title = f"Predictions of {len(classes)} labels"
    return labelled_svg(title, *parts, height=_ROW * len(classes))
