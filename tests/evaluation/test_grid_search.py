from __future__ import annotations

import pytest
import torch
from torch import nn

from mixup_inference import InputError, MixupInference, evaluate, get_preset, pgd
from mixup_inference.defenses import DEFENSES, write_preset
from mixup_inference.evaluation import Accuracy
from mixup_inference.evaluation.grid_search import Trial, choose, grid_of, pareto, try_settings
from mixup_inference.experiments import Experiment, check_spec, tune
from specs import PLAIN, tiny_spec

SPEC = tiny_spec(
    draws=3,
    data={"test": 60, "tuning": 50},
    training={"epochs": 5, "lr": 0.1, "schedule": "one-cycle"},
    rows=[PLAIN],
)


def trial(clean, *robust):
    attacked = {str(i): Accuracy(r, 100) for i, r in enumerate(robust)}
    return Trial({"clean": clean}, Accuracy(clean, 100), attacked)


def test_the_choice_keeps_the_promise_about_clean_accuracy():
    trials = [trial(99, 10, 20), trial(97, 40, 30), trial(96, 60, 60), trial(98, 35, 35)]
    base = Accuracy(99, 100)
    assert choose(trials, base, loss=0.02).settings == {"clean": 98}  # of equals the cleaner
    assert choose(trials, base, loss=0.03).settings == {"clean": 96}
    assert choose(trials, base, loss=0.0).settings == {"clean": 99}
    with pytest.raises(InputError, match=r"every setting loses more than 0 points .* loses 1\.0"):
        choose(trials[1:], base, loss=0.0)


def test_the_front_by_definition():
    generator = torch.Generator().manual_seed(0)
    trials = [trial(*torch.randint(0, 20, (3,), generator=generator).tolist()) for _ in range(60)]
    for one, front in zip(trials, pareto(trials), strict=True):
        beaten = any(
            other.clean.value >= one.clean.value
            and other.robust >= one.robust
            and (other.clean.value > one.clean.value or other.robust > one.robust)
            for other in trials
        )
        assert front != beaten


def test_trials_are_what_evaluate_says(trained, pool, parts):
    test = parts["test"].take(torch.arange(40))
    x_adv = pgd(trained, test.images, test.labels, eps=0.1, step=0.05, steps=3)
    trials = try_settings(
        trained,
        pool,
        "mi-ol",
        test.images,
        {"a": x_adv},
        test.labels,
        grid=[{"lam": 0.7}, {"lam": 0.4}],
        draws=4,
        seed=5,
    )
    for found in trials:
        defended = MixupInference(trained, pool, **found.settings, draws=4, seed=5)
        for x, accuracy in ((test.images, found.clean), (x_adv, found.attacked["a"])):
            assert evaluate(defended, x, test.labels, stream="tuning") == accuracy


def test_every_grid_fits_images_of_any_size(trained, pool):
    x = torch.rand(1, 1, 8, 8)
    for entry in DEFENSES.values():
        for settings in entry.grid:
            entry.build(trained, pool, **settings, draws=1)(x)


def test_a_defence_of_a_users_own_is_tuned_and_evaluated(trained, pool, parts):
    @DEFENSES.register("dim", title="random dimming", grid=[{"most": m} for m in (0.0, 0.1, 0.95)])
    class Dim(nn.Module):
        def __init__(self, model, most=0.2):
            super().__init__()
            self.model, self.most = model, most

        def forward(self, x):
            return self.model(x * (1 - self.most * torch.rand(len(x), 1, 1, 1)))

    try:
        test = parts["test"].take(torch.arange(60))
        x_adv = pgd(trained, test.pixels, test.labels, eps=0.1, step=0.05, steps=3)
        points = (test.pixels, {"a": x_adv}, test.labels)
        trials = try_settings(trained, pool, "dim", *points, draws=4, seed=5)
        assert trials == try_settings(trained, pool, "dim", *points, draws=9)  # it takes no draws
        base = evaluate(trained, test.pixels, test.labels)
        assert trials[0].clean == base
        assert trials[-1].clean.value < base.value - 0.02
        chosen = choose(trials, base)
        assert chosen.settings in ({"most": 0.0}, {"most": 0.1})
        defended = DEFENSES["dim"].build(trained, **chosen.settings)
        assert evaluate(defended, x_adv, test.labels, stream="tuning") == chosen.attacked["a"]
    finally:
        DEFENSES.remove("dim")


def test_a_defence_without_a_grid_cannot_be_tuned():
    with pytest.raises(InputError, match="has no settings to tune"):
        grid_of("none")
    with pytest.raises(InputError, match="did you mean 'mi-ol'"):
        grid_of("mi-oll")


def test_tuning_reports_on_points_it_did_not_choose_on(tmp_path):
    experiment = Experiment(check_spec(SPEC), tmp_path)
    tuned = tune(experiment, "mixup", "mi-ol", loss=1.0)
    assert len(tuned.trials) == len(grid_of("mi-ol"))
    assert tuned.trials[0].clean.total == 50
    assert tuned.reported[0][0].total == 60
    robust = max(t.robust for t in tuned.trials)
    assert next(t for t in tuned.trials if t.settings == tuned.settings).robust == robust
    again = Experiment(check_spec(SPEC), tmp_path)
    again.models._train = None  # nothing is computed twice, least of all the model
    again.models._models["mixup"] = experiment.models["mixup"]
    assert tune(again, "mixup", "mi-ol", loss=1.0) == tuned
    with pytest.raises(InputError, match="did you mean 'mi-ol'"):
        tune(experiment, "mixup", "mi-oll")
    with pytest.raises(InputError, match="did you mean 'mixup'"):
        tune(experiment, "mixp", "mi-ol")


@pytest.mark.parametrize(
    "settings",
    [
        {"lam": 0.55},
        {"lam": {"uniform": [0.4, 0.6]}},
        {"lam_detect": 0.5, "lam_defend": 0.4, "threshold": -0.05},
        {"size": (0.5, 0.75), "variant": "crop"},
    ],
)
def test_preset_files_are_read_as_they_were_written(settings, tmp_path, trained, pool):
    kind = (
        "mi-ol" if "lam" in settings else "mi-combined" if "threshold" in settings else "resize-pad"
    )
    path = tmp_path / "mine.toml"
    write_preset(path, kind, settings, comment="two\nlines")
    preset = get_preset(str(path))
    assert preset.kind == kind
    assert {
        k: tuple(v) if isinstance(v, list) else v for k, v in preset.settings.items()
    } == settings
    assert preset.build(trained, pool, draws=1)(torch.rand(1, 1, 8, 8)).shape == (1, 10)


def test_preset_files_with_mistakes(tmp_path):
    path = tmp_path / "mine.toml"
    for text, words in (
        ("lam = 0.5", "must say which defence"),
        ('defense = "mi-oll"', "did you mean 'mi-ol'"),
        ('defense = "mi-ol"\nlambda = 1', "did you mean 'lam'"),
        ("defense =", "is not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            get_preset(str(path))
    with pytest.raises(InputError, match="cannot read the preset"):
        get_preset(str(tmp_path / "nowhere.toml"))
