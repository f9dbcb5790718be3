from __future__ import annotations

import pytest

from mixup_inference import InputError
from mixup_inference.evaluation import load_spec, parse_spec, shipped_specs

GOOD = """
name = "tiny"
title = "A tiny experiment"

[data]
name = "digits"
test = 50

[network]
name = "small_cnn"
width = 4

[training]
epochs = 2

[models.mixup]
objective = "mixup"
lr = 0.1

[attack]
eps = 0.1
step = 0.02
steps = [2, 4]

[[rows]]
title = "Mixup"
model = "mixup"

[[rows]]
title = "Mixup + MI-OL"
model = "mixup"
defense = "mi-ol"
lam = {uniform = [0.4, 0.6]}
"""


def test_good_specs_pass():
    spec = parse_spec(GOOD)
    assert spec.recipe("mixup").epochs == 2
    assert spec.recipe("mixup").lr == 0.1
    assert spec.rows[1].settings == {"lam": {"uniform": [0.4, 0.6]}}
    assert spec.draws == 30


@pytest.mark.parametrize("name", shipped_specs())
def test_shipped_specs_pass(name):
    assert load_spec(name).name == name


def test_digits_has_every_row_of_table_2():
    rows = {(row.model, row.defense) for row in load_spec("digits").rows}
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
        ("epochs = 2", "epochs = 0", "training: epochs must be at least 1"),
        ("steps = [2, 4]", "steps = []", "attack.steps"),
        ('objective = "mixup"', "", "'models.mixup.objective' is missing"),
        ('objective = "mixup"', 'objective = "mixpu"', "models.mixup.objective: .*'mixup'"),
        ('name = "tiny"', 'name = "../up"', "name: "),
        ("[models.mixup]", '[models."../up"]', "models"),
        ('title = "Mixup"\n', 'titel = "Mixup"\n', "rows.0: .*'titel'; did you mean 'title'"),
        ('model = "mixup"\n\n', 'model = "mixup"\ndefence = "mi-ol"\n\n', "did you mean 'defense'"),
        ("steps = [2, 4]", "steps = [2, 2]", "steps has duplicates"),
        ("eps = 0.1", "eps = inf", "attack.eps: .*finite"),
        ("epochs = 2", "milestones = [100, 150]", "fraction of the epochs.*saw 100"),
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
