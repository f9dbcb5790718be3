"""The results as a page with tables and two plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks import growth_report
from benchmarks.markdown import ranged as _range
from benchmarks.markdown import table as _table

COLOURS = {"independent": "#555555", "stratified": "#0072b2", "control variate": "#d55e00",
           "both": "#009e73"}  # fmt: skip


def write(results: Mapping[str, Any], folder: Path) -> None:
    """README.md, and the plots as SVG and PNG."""
    _plot(results["agreement"], folder)
    machine = results["machine"]
    lines = [
        "# Benchmarks",
        "",
        "`make bench` measures all of this again and writes this page. What is compared takes",
        f"turns for {results['rounds']} rounds; each ratio is the median of the rounds, with",
        "the lowest and the highest in brackets.",
        "",
        f"Measured on {machine['threads']} threads of an {machine['architecture']} CPU",
        f"({machine['instructions']}), torch {results['versions']['torch']}, in",
        f"{results['minutes']:.0f} minutes. Networks at 32x32 pixels; 30 draws.",
        "",
        *_limit(results["limit"]),
        *_engines(results["engines"]),
        *_agreement(results["agreement"]),
        *_attacks(results["pgd"], results["eot"], results["rounding"]),
        *growth_report.growth(results["growth"], folder),
        *growth_report.pool(results["pool"]),
        *_training(results["training"]),
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def _limit(found: Mapping[str, Any]) -> list[str]:
    engines = ("eager", "folded")
    limits = [
        [name, *(_range(entry[engine]["over_limit"]) for engine in engines)]
        for name, entry in found.items()
    ]
    loops = [
        [
            name,
            str(count),
            *(_range(entry[engine]["double_loop"][count], 1) for engine in engines),
            _range(entry["better"], 1) if int(count) == entry["images"] else "",
        ]
        for name, entry in found.items()
        for count in entry["eager"]["double_loop"]
    ]
    return [
        "## Mixup inference against the limit",
        "",
        "The time of mixup inference, divided by that of its 31 forward passes per image",
        "alone: the same engine at its best batch size, with nothing drawn or mixed. 1.00 is",
        "the limit; lower values are noise.",
        "",
        *_table(["network", *engines], limits),
        "## Against the double loop",
        "",
        "The published code takes one image and one draw after the other. This is how many times",
        "faster mixup inference is here, by the number of images in a call. The last column",
        "compares 9 draws, stratified and with the control variate, on the folded engine, with the",
        "loop's 30 draws: these 9 agree with very many draws more often than the 30 do (see",
        "below), so the decisions are no worse.",
        "",
        *_table(["network", "images per call", *engines, "9 better draws"], loops),
    ]


def _engines(found: Mapping[str, Any]) -> list[str]:
    names = list(next(iter(found.values())))
    rows = [[net, *(_range(entry[name]) for name in names)] for net, entry in found.items()]
    return [
        "## Engines",
        "",
        'Mixup inference end to end, times faster than `engine="eager"`. ONNX Runtime and',
        "OpenVINO are measured if they are installed.",
        "",
        *_table(["network", *names], rows),
    ]


def _agreement(found: Mapping[str, Any]) -> list[str]:
    out = [
        "## Better draws",
        "",
        "How often MI-OL (lam 0.5) gives the same label as with 3,000 draws, in percent, for",
        "a small mixup-trained network on 300 embedded digits, clean and under oblivious",
        "PGD-10 (eps 0.15).",
        "",
        "![agreement with the label of very many draws](agreement.png)",
        "",
    ]
    for kind, entry in found.items():
        counts = list(next(iter(entry["curves"].values())))
        rows = [
            [way, *(f"{100 * curve[n]:.1f}" for n in counts)]
            for way, curve in entry["curves"].items()
        ]
        out += [*_table([f"{kind}: draws", *(str(n) for n in counts)], rows)]
    shares = ("agreement", "agreement_fixed", "accuracy", "accuracy_many")
    head = ["points", "settings", "mean draws", "agreement", "fixed number", "accuracy",
            "of 3,000 draws"]  # fmt: skip
    return [
        *out,
        "## Stopping early",
        "",
        "`stop=` beside a fixed number of draws with the same cost: agreement with 3,000",
        "draws, and accuracy, in percent.",
        "",
        *_table(head, _stopping(found, "stopping", shares)),
        "The same for whether a detector flags a point (MI-PL, calibrated to flag a fifth of",
        "the clean points).",
        "",
        *_table(head[:5], _stopping(found, "detecting", shares[:2])),
    ]


def _stopping(found: Mapping[str, Any], part: str, shares: tuple[str, ...]) -> list[list[str]]:
    return [
        [
            kind,
            ", ".join(f"{key}={value}" for key, value in one["options"].items()),
            f"{one['mean_draws']:.1f}",
            *(f"{100 * one[share]:.1f}" for share in shares),
        ]
        for kind, entry in found.items()
        for one in entry[part]
    ]


def _attacks(
    pgd: Mapping[str, Any], eot: Mapping[str, Any], rounding: Mapping[str, Any]
) -> list[str]:
    names = list(next(iter(pgd.values())))
    rows = [[net, *(_range(entry[name]) for name in names)] for net, entry in pgd.items()]
    loops = [[net, _range(entry)] for net, entry in eot.items()]
    rounded = [[net, *map(_range, entry.values())] for net, entry in rounding.items()]
    return [
        "## Attacks",
        "",
        "PGD-10 on the same model with the same settings: times faster than each library.",
        "",
        *_table(["network", *names], rows),
        "EOT-PGD on MI-OL with 20 draws per step: times faster than a loop over the draws.",
        "",
        *_table(["network", "loop over draws"], loops),
        'In bfloat16 (`engine="bfloat16"`, `precision="bf16-mixed"`): times faster than in',
        "float32, on a processor that supports it. In float32, mixup inference uses the",
        "folded engine.",
        "",
        *_table(["network", *next(iter(rounding.values()))], rounded),
    ]


def _training(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [net, objective, _range(entry["faster"]), _range(entry["images_a_second"], 0)]
        for net, objectives in found.items()
        for objective, entry in objectives.items()
    ]
    return [
        "## Training",
        "",
        "One short epoch of `train`, set-up included, beside a plain PyTorch loop of the same",
        "objective, in batches of 64; AT and interpolated AT attack with PGD-10.",
        "",
        *_table(["network", "objective", "times faster", "images per second"], rows),
    ]


def _plot(found: Mapping[str, Any], folder: Path) -> None:
    figure, axes = plt.subplots(1, len(found), figsize=(10, 4), layout="constrained")
    for axis, (kind, entry) in zip(axes, found.items(), strict=True):
        for way, curve in entry["curves"].items():
            counts = [int(n) for n in curve]
            shares = [100 * share for share in curve.values()]
            axis.plot(counts, shares, marker="o", label=way, color=COLOURS[way])
        axis.axhline(
            100 * next(v for n, v in entry["curves"]["independent"].items() if int(n) == 30),
            color="#555555", linewidth=1, linestyle=":", label="30 independent draws",
        )  # fmt: skip
        axis.set_xscale("log")
        axis.set_xticks([3, 6, 10, 18, 30, 60], labels=["3", "6", "10", "18", "30", "60"])
        axis.minorticks_off()
        axis.set_xlabel("draws")
        axis.set_title(f"{kind} points")
        axis.grid(color="#dddddd")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("agreement with 3,000 draws (%)")
    axes[0].legend(frameon=False)
    for ending in ("png", "svg"):
        figure.savefig(folder / f"agreement.{ending}", dpi=130)
    plt.close(figure)
