from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from mixup_inference import InputError
from mixup_inference.experiments import load_spec, parse_spec, shipped_specs
from mixup_inference.experiments.spec import check_spec, smoke
from mixup_inference.training import Recipe
from specs import DEFENDED, PLAIN, tiny_spec, tiny_toml

GOOD = tiny_toml(
    draws=None,
    data={"test": 50},
    training={"epochs": 2},
    models={"mixup": {"lr": 0.1}},
    attack={"step": 0.02, "steps": [2, 4]},
    rows=[PLAIN, DEFENDED | {"lam": {"uniform": [0.4, 0.6]}}],
)


def test_good_specs_pass():
    spec = parse_spec(GOOD)
    assert spec.recipe("mixup").epochs == 2
    assert spec.recipe("mixup").lr == 0.1
    assert spec.rows[1].settings == {"lam": {"uniform": [0.4, 0.6]}}
    assert spec.draws == 30


@cache
def shipped(name):
    """A spec of ours, read once for all tests."""
    return load_spec(name)


@pytest.mark.parametrize("name", shipped_specs())
def test_shipped_specs_pass(name):
    assert shipped(name).name == name


def test_digits_has_every_row_of_table_2():
    rows = {(row.model, row.defense) for row in shipped("digits").rows}
    baselines = ["none", "gaussian", "rotation", "resize-pad", "crop-resize", "mi-ol"]
    expected = {(model, defense) for model in ("mixup", "iat") for defense in baselines}
    expected |= {(model, defense) for model in ("erm", "at") for defense in ("none", "mi-ol")}
    assert rows == expected | {("mixup", "mi-combined")}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "A tiny', 'titel = "A tiny', "unknown key 'titel'; did you mean 'title'"),
        ("epochs = 2", "epoch = 2", "training: unknown key 'epoch'; did you mean 'epochs'"),
        ("lr = 0.1", "l_r = 0.1", "models.mixup: unknown key 'l_r'; did you mean 'lr'"),
        ("test = 50", "tests = 50", "data: unknown key 'tests'; did you mean 'test'"),
        ("width = 4", "widht = 4", "network: .*'widht'; did you mean 'width'"),
        ("lam = {", "lambda = {", "rows.1: .*mi-ol.* 'lambda'; did you mean 'lam'"),
        ("test = 50", "", "'data.test' is missing"),
        ("[attack]\neps = 0.1", "[attack]", "'attack.eps' is missing"),
        ('name = "digits"', 'name = "digitz"', "did you mean 'digits'"),
        ('name = "small_cnn"', 'name = "smallcnn"', "did you mean 'small_cnn'"),
        ('defense = "mi-ol"', 'defense = "mi_ol"', "did you mean 'mi-ol'"),
        ('title = "Mixup + MI-OL"\nmodel = "mixup"', 'title = "b"\nmodel = "mixpu"', "mixpu"),
        ('title = "Mixup + MI-OL"', 'title = "Mixup"', "two rows"),
        ("[0.4, 0.6]", "[0.4, 1.6]", r"must be in \[0, 1\]; saw 1.6"),
        ("eps = 0.1", "eps = -0.1", "attack.eps: .*greater than 0.*saw -0.1"),
        ("eps = 0.1", 'eps = "big"', "attack.eps: .*saw 'big'"),
        ("epochs = 2", "epochs = 0", "training: epochs must be greater than or equal to 1"),
        ("steps = [2, 4]", "steps = []", "attack.steps"),
        ('objective = "mixup"', "", "'models.mixup.objective' is missing"),
        ('objective = "mixup"', 'objective = "mixpu"', "models.mixup: unknown objective.*'mixup'"),
        ('name = "tiny"', 'name = "../up"', "name: "),
        ("[models.mixup]", '[models."../up"]', "models"),
        ('title = "Mixup"\n', 'titel = "Mixup"\n', "rows.0: .*'titel'; did you mean 'title'"),
        ('model = "mixup"\n\n', 'model = "mixup"\ndefence = "mi-ol"\n\n', "did you mean 'defense'"),
        ("steps = [2, 4]", "steps = [2, 2]", "steps has duplicates"),
        ("eps = 0.1", "eps = inf", "attack.eps: .*finite"),
        ("epochs = 2", "milestones = [100, 150]", "fractions of the epochs.*saw 100"),
        ("width = 4", "width = 4\n[training.x]", "training: unknown key 'x'"),
        ("{uniform = [0.4, 0.6]}", "{uniform = 3}", "a ratio is"),
        ('name = "tiny"', 'name = "tiny"\nseed = 99999999999999999999', "seed"),
        ('name = "tiny"', "name = ", "not valid TOML"),
        ('defense = "mi-ol"', 'defense = "mi-ol"\ndraws = 3', "draws belongs to the whole"),
    ],
)
def test_mistakes_are_named(old, new, words):
    assert old in GOOD
    with pytest.raises(InputError, match=words):
        parse_spec(GOOD.replace(old, new, 1))


@pytest.mark.parametrize("size", ["6", '["a", "b"]', "[1, 2, 3]", "[3.0, 5]"])
def test_bad_sizes(size):
    row = f'defense = "crop-resize"\nsize = {size}'
    with pytest.raises(InputError, match=r"rows\.1: size must be"):
        parse_spec(GOOD.replace('defense = "mi-ol"\nlam = {uniform = [0.4, 0.6]}', row))


def test_a_byte_order_mark_does_no_harm(tmp_path):
    (tmp_path / "bom.toml").write_text(GOOD, encoding="utf-8-sig")
    assert load_spec(str(tmp_path / "bom.toml")).name == "tiny"


def test_several_mistakes_are_all_told():
    with pytest.raises(InputError) as caught:
        parse_spec(GOOD.replace("eps = 0.1", "eps = 0").replace("test = 50", "test = 0"))
    assert len(str(caught.value).splitlines()) == 2


def test_unknown_files_and_names(tmp_path):
    with pytest.raises(InputError, match="did you mean 'digits'"):
        load_spec("digit")
    with pytest.raises(InputError, match="cannot read"):
        load_spec(str(tmp_path / "nowhere.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        load_spec(str(tmp_path / "binary.toml"))


TRAINED = '[models.mixup]\nobjective = "mixup"\nlr = 0.1'


@pytest.mark.parametrize(
    ("model", "trained"),
    [
        ('[models.mixup]\nweights = "x.safetensors"', False),
        ('[models.mixup]\nnetwork = {name = "mine:build", mean = 0.5}', False),
        ('[models.mixup]\nweights = "x"\nnetwork = {name = "resnet20"}', False),
        ('[models.mixup]\nobjective = "erm"\nnetwork = {name = "mine:build"}', True),
    ],
)
def test_models_may_be_brought_along(model, trained):
    spec = parse_spec(GOOD.replace(TRAINED, model), allow_code=True)
    assert spec.is_trained("mixup") == trained


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ('[models.mixup]\nweights = "x"\nlr = 0.1', "not trained; take out lr"),
        ('[models.mixup]\nwieghts = "x"', "did you mean 'weights'"),
        ("[models.mixup]\nlr = 0.1", "objective' is missing"),
        ('[models.mixup]\nnetwork = {name = "small_cn"}', "did you mean 'small_cnn'"),
    ],
)
def test_models_that_are_neither_trained_nor_brought(model, words):
    with pytest.raises(InputError, match=words):
        parse_spec(GOOD.replace(TRAINED, model))


def test_a_network_is_needed_unless_the_weights_bring_it():
    network = '[network]\nname = "small_cnn"\nwidth = 4\n'
    with pytest.raises(InputError, match="'network' is missing for the model mixup"):
        parse_spec(GOOD.replace(network, ""))
    spec = parse_spec(GOOD.replace(network, "").replace(TRAINED, '[models.mixup]\nweights = "x"'))
    assert spec.network_of("mixup") is None


def test_one_mistake_is_one_line():
    with pytest.raises(InputError) as caught:
        parse_spec(GOOD.replace('defense = "mi-ol"', 'defense = ["x"]'))
    assert str(caught.value) == "spec: rows.1: defense must be a name; saw ['x']."


def test_a_small_spec_stays_small_under_smoke():
    assert smoke(parse_spec(GOOD.replace("test = 50", "test = 4"))).data.test == 4


def test_rows_by_preset():
    row = 'defense = "mi-ol"\nlam = {uniform = [0.4, 0.6]}'
    spec = parse_spec(GOOD.replace(row, 'preset = "cifar10/mixup+mi-combined"'))
    assert spec.rows[1].defense == "mi-combined"
    assert spec.rows[1].settings == {"lam_detect": 0.5, "lam_defend": 0.4, "threshold": 0.2}
    for wrong, words in (
        ('preset = "cifar10/mixup+mi-lo"', "did you mean 'cifar10/mixup\\+mi-ol'"),
        ('preset = "cifar10/mixup+mi-ol"\nlam = 0.4', "the preset sets lam"),
    ):
        with pytest.raises(InputError, match=words):
            parse_spec(GOOD.replace(row, wrong))


@pytest.mark.parametrize("table", ["cifar10", "cifar100"])
@pytest.mark.parametrize("size", ["", "paper-"])
def test_the_cifar_specs_have_every_row_of_the_parameter_tables(table, size):
    from mixup_inference.defenses.presets import PRESETS

    spec = shipped(size + table)
    rows = {(row.model, row.defense, str(row.settings)) for row in spec.rows}
    for name, preset in PRESETS.items():
        if name.startswith(f"{table}/"):
            assert (preset.objective, preset.kind, str(dict(preset.settings))) in rows
    assert spec.draws == 30
    assert spec.data.test == 1000
    assert spec.attack.eps == 8 / 255
    assert spec.attack.step == 2 / 255


def test_the_paper_specs_have_the_papers_recipes():
    for name in ("paper-cifar10", "paper-cifar100"):
        spec = shipped(name)
        assert spec.network.name == "official_resnet50"
        for model in spec.models:
            ours, papers = spec.recipe(model), Recipe.of_paper(model)
            assert replace(ours, flip=False, crop_padding=0) == papers
        assert spec.attack.steps == (10, 50, 200)


@pytest.mark.parametrize("name", shipped_specs())
def test_every_spec_has_a_smoke_version(name):
    spec = smoke(shipped(name))
    assert spec.name == f"{name}-smoke"
    assert spec.data.test == 32
    for model in filter(spec.is_trained, spec.models):
        recipe = spec.recipe(model)
        assert recipe.epochs * recipe.steps_of_epoch(50_000) == 1
        assert recipe.steps == 1
        assert recipe.batch_size == 32
    assert spec.attack.steps == (1,)
    assert len(spec.rows) == len(shipped(name).rows)


def test_a_row_for_each_model():
    models = {"erm": {"objective": "erm"}}  # beside mixup
    rows = [{"model": "*"}, {"title": "{model} twice", "model": ["mixup"], "defense": "mi-ol"}]
    spec = check_spec(tiny_spec(models=models, rows=rows))
    assert [(row.title, row.model, row.group, row.defense) for row in spec.rows] == [
        ("mixup", "mixup", "mixup", "none"),
        ("erm", "erm", "erm", "none"),
        ("mixup twice", "mixup", "mixup", "mi-ol"),
    ]
    with pytest.raises(InputError, match="model in the row 'earm': 'earm'; did you mean 'erm'"):
        check_spec(tiny_spec(models=models, rows=[{"model": ["earm"]}]))
    with pytest.raises(InputError, match="unknown defence 'mi-lo'"):
        check_spec(tiny_spec(rows=[{"model": "*", "defense": "mi-lo"}]))
    with pytest.raises(InputError, match="title"):
        check_spec(tiny_spec(rows=[{"model": 3}]))
