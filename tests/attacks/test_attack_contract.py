"""What every attack of the registry promises, a user's own included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mixup_inference import CombinedInference, InputError, MixupInference, Pool
from mixup_inference.attacks import (
    ATTACKS,
    AttackOptions,
    attack_title,
    check_settings,
    eot_pgd,
    freeze,
    get_attack,
    judge,
    library_version,
    run_attack,
    suite,
)
from mixup_inference.cli.evaluate_options import adaptive_section
from mixup_inference.cli.options import OneModel
from mixup_inference.errors import MixupInferenceWarning
from mixup_inference.experiments import check_spec
from mixup_inference.models.call import count_passes

MINE = "one-step"
NAMES = [*ATTACKS, MINE]
SMALL = {"steps": 3, "draws": 2, "samples": 2, "queries": 6, "restarts": 1}
SMALL |= {"n_iter": 4, "eot_iter": 2, "searches": 3, "learning_rate": 0.1, "constant": 9.0}


def one_step(defense, x, y, *, eps, norm="linf", size: float = 1.0):
    """FGSM through one answer of the defence."""
    leaf = x.clone().requires_grad_()
    nn.functional.cross_entropy(defense(leaf), y, reduction="sum").backward()
    if norm == "linf":
        return (x + size * eps * leaf.grad.sign()).clamp(0, 1)
    unit = leaf.grad / leaf.grad.flatten(1).norm(dim=1)[:, None, None, None].clamp(min=1e-9)
    return (x + size * eps * unit).clamp(0, 1)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    ATTACKS.register(MINE, title="one step of {size}")(one_step)
    yield
    ATTACKS.remove(MINE)


torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5)).eval()
X = torch.rand(7, 1, 6, 6)
Y = torch.arange(7) % 5
POOL = Pool(torch.rand(10, 1, 6, 6), torch.arange(10) % 5)


def defended(name: str, model: nn.Module, pool: Pool = POOL, **options) -> nn.Module:
    """Wrap a model in a defence that the attack is made for."""
    if ATTACKS[name].target == "detector":
        return CombinedInference(model, pool, draws=3, threshold=1.0)
    return MixupInference(model, pool, **({"draws": 3} | options))


def settings_of(name: str, **more) -> dict:
    known = ATTACKS[name].defaults
    return {key: value for key, value in (SMALL | more).items() if key in known}


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", NAMES)
def test_stays_in_the_threat_model(name, norm):
    entry = ATTACKS[name]
    if norm not in entry.norms:
        pytest.skip("not defined in this norm")
    result = run_attack(name, defended(name, NETWORK), X, Y, settings=settings_of(name), eps=0.2,
                        norm=norm)  # fmt: skip
    size = result.linf if norm == "linf" else result.l2
    assert 0.05 < float(size.max()) <= 0.2 + 1e-5
    assert 0 <= float(result.examples.min()) <= float(result.examples.max()) <= 1
    assert result.examples.shape == X.shape
    assert result.loss.shape == (7,)
    assert result.fooled.shape == (7, 5 if entry.worst_case else 1)


@pytest.mark.parametrize("name", NAMES)
def test_batches_change_nothing(name):
    if ATTACKS[name].library:
        pytest.skip("other libraries drop and reorder points")
    index = torch.arange(7) + 40
    options = {"settings": settings_of(name), "eps": 0.2, "index": index, "seed": 2, "repeats": 2}
    options["norm"] = ATTACKS[name].norms[0]
    defense = defended(name, NETWORK)
    if name == MINE:  # which sees the defence's own draws
        defense = freeze(defense)
    whole, parts = (
        run_attack(name, defense, X, Y, batch_size=size, **options) for size in (256, 3)
    )
    torch.testing.assert_close(parts.examples, whole.examples)
    torch.testing.assert_close(parts.loss, whole.loss)
    assert torch.equal(parts.fooled, whole.fooled)
    assert (parts.forward, parts.backward) == (whole.forward, whole.backward)


@pytest.mark.parametrize("name", NAMES)
def test_passes_are_counted(name):
    defense = defended(name, NETWORK)
    with count_passes(NETWORK) as total:
        result = run_attack(
            name, defense, X, Y, settings=settings_of(name), eps=0.2, repeats=2,
            norm=ATTACKS[name].norms[0],
        )  # fmt: skip
    judged = defense if ATTACKS[name].worst_case else freeze(defense)
    with count_passes(NETWORK) as judging:
        fooled = judge(judged, result.examples, Y, repeats=2)
    assert torch.equal(result.fooled, fooled)
    assert result.forward == total.forward - judging.forward > 0
    assert result.backward == total.backward
    assert (result.backward == 0) == (ATTACKS[name].threat_model == "black-box")


class Linear(nn.Module):
    """The logit of class 1 is the sum of all pixels minus a bound; that of class 0 is zero.

    Two more classes are far behind: AutoAttack's DLR needs them.
    """

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1).sum(1, keepdim=True) - 18.5
        zero = torch.zeros_like(score)
        return torch.cat([zero, score, zero - 9, zero - 9], dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_linear_model_is_broken_exactly_when_eps_suffices(name):
    """36 pixels must rise by 0.5 in all; mixup inference with lam = 1 is the model itself."""
    x, y = torch.full((3, 1, 6, 6), 0.5), torch.zeros(3, dtype=torch.long)
    pool = Pool(torch.rand(4, 1, 6, 6), torch.arange(4))
    defense = defended(name, Linear(), pool, lam=1.0)
    settings = settings_of(name, steps=12, queries=400)
    for norm, least in (("linf", 0.5 / 36), ("l2", 0.5 / 6)):
        if norm not in ATTACKS[name].norms or (norm == "l2" and name == "square"):
            continue  # squares approach the best direction in l2 only slowly
        for times, broken in ((1.01, 1.0), (0.99, 0.0)):
            result = run_attack(
                name, defense, x, y, settings=settings, eps=times * least, norm=norm
            )
            assert float(result.success.mean()) == broken, (norm, times)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_says_everything(name):
    entry = get_attack(name)
    assert set(entry.counts) <= set(entry.defaults)
    special = entry.target != "any" or entry.surrogates or entry.norms == ("l2",)
    assert bool(entry.requires) == special
    assert entry.applies_to("mi-ol") == (entry.target != "detector")
    assert entry.applies_to("none") == (entry.target == "any")
    assert "{" not in attack_title(name, {})
    for key in entry.counts:
        with pytest.raises(InputError, match=f"{key} must be at least 1"):
            check_settings(name, {key: 0})
    with pytest.raises(InputError, match="unknown setting"):
        check_settings(name, {"zzz": 1})


def test_the_standard_suite():
    names = ["oblivious", "transfer", "official-adaptive", "paper-adaptive", "eot-pgd", "apgd"]
    assert [e.name for e in suite()] == [*names, "detector-aware", "square", "frozen"]


def test_reading_a_spec_runs_no_attack(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("an attack was run")

    monkeypatch.setattr("mixup_inference.attacks.base.perturb", fails)
    for entry in suite("standard"):
        check_settings(entry.name, entry.suite_settings)


# A user's own


def spec_with(attack: dict) -> dict:
    return {
        "name": "tiny",
        "title": "tiny",
        "data": {"name": "digits", "test": 20},
        "network": {"name": "small_cnn"},
        "models": {"m": {"objective": "erm"}},
        "attack": {"eps": 0.1, "step": 0.02, "steps": [2]},
        "adaptive": {"points": 4, "attacks": [attack]},
        "rows": [{"title": "plain", "model": "m"}],
    }


def test_a_registered_attack_is_one_like_all_others():
    assert MINE in ATTACKS
    assert ATTACKS[MINE].threat_model == "custom"
    assert attack_title(MINE, {"size": 0.5}) == "one step of 0.5"
    spec = check_spec(spec_with({"attack": MINE, "size": 0.5}))
    assert spec.adaptive.attacks[0].name == "one step of 0.5"
    assert [a.attack for a in spec.adaptive.candidates] == [MINE, "eot-pgd"]
    assert spec.attack_applies(spec.adaptive.attacks[0], spec.rows[0])
    with pytest.raises(InputError, match="did you mean 'size'"):
        check_spec(spec_with({"attack": MINE, "sise": 0.5}))
    with pytest.raises(InputError, match="size must be a number"):
        check_spec(spec_with({"attack": MINE, "size": "large"}))
    assert library_version(MINE) is None
    assert library_version("autoattack-rand") == library_version("autoattack:rand") is not None


def test_every_transfer_attack_takes_surrogates():
    for name in ("transfer", "momentum-transfer"):
        document = spec_with({"attack": name, "surrogates": ["other"]})
        document["models"]["other"] = {"objective": "erm"}
        spec = check_spec(document)
        assert spec.surrogates(spec.adaptive.attacks[0], "m") == ["other"]
        assert spec.attack_applies(spec.adaptive.attacks[0], spec.rows[0])
        one = OneModel(attack=(name,), surrogate=("a.safetensors", "b.safetensors"))
        attack, main = adaptive_section(one)["attacks"]
        assert attack == {"attack": name, "surrogates": ["surrogate-1", "surrogate-2"]}
        assert main == {"attack": "eot-pgd"}
    with pytest.raises(InputError, match="for transfer attacks"):
        adaptive_section(OneModel(attack=("momentum",), surrogate=("a.safetensors",)))


def test_code_of_a_user_runs_only_if_allowed(tmp_path, monkeypatch):
    (tmp_path / "my_attacks.py").write_text(
        "from mixup_inference.attacks import eot_pgd\n"
        "def short(defense, x, y, *, eps, index, seed, steps: int = 2):\n"
        "    return eot_pgd(defense, x, y, eps=eps, index=index, seed=seed, steps=steps, draws=2)\n"
    )
    monkeypatch.chdir(tmp_path)
    document = spec_with({"attack": "my_attacks:short", "steps": 3})
    with pytest.raises(InputError, match="allow-code"):
        check_spec(document)
    try:
        spec = check_spec(document, allow_code=True)
        assert spec.adaptive.attacks[0].name == "my_attacks:short"
        defense = MixupInference(NETWORK, POOL, draws=3)
        options = {"eps": 0.2, "seed": 1, "repeats": 2}
        mine = run_attack("my_attacks:short", defense, X, Y, settings={"steps": 3}, **options)
    finally:
        ATTACKS.remove("my_attacks:short")
    ours = eot_pgd(defense, X, Y, steps=3, draws=2, **options)
    assert torch.equal(mine.examples, ours.examples)
    assert torch.equal(mine.fooled, ours.fooled)
    looks = 7 * 2 * (1 + 10)  # the loss at x and at the example, over ten draws and y_hat
    assert (mine.forward, mine.backward) == (ours.forward + looks, ours.backward)


def astray(defense, x, y, *, eps):
    return x + 2 * eps


def shapeless(defense, x, y):
    return x[:, :, 1:]


def nothing(defense, x, y):
    return None


def test_what_a_user_returns_is_checked():
    for function in (astray, shapeless, nothing):
        ATTACKS.register(function.__name__)(function)
    try:
        with pytest.warns(MixupInferenceWarning, match="astray left the linf ball by 0.2"):
            result = run_attack("astray", NETWORK, X, Y, settings={}, eps=0.1)
        torch.testing.assert_close(result.examples, (X + 0.1).clamp(max=1))
        with pytest.raises(InputError, match="shapeless gave shape"):
            run_attack("shapeless", NETWORK, X, Y, settings={})
        with pytest.raises(InputError, match="must return a tensor of images"):
            run_attack("nothing", NETWORK, X, Y, settings={})
        with pytest.raises(InputError, match="cannot be targeted"):
            run_attack("astray", NETWORK, X, Y, settings={}, targeted=True)
        with pytest.raises(TypeError, match="did you mean 'eps'"):
            run_attack("astray", NETWORK, X, Y, settings={}, epss=0.1)
    finally:
        for function in (astray, shapeless, nothing):
            ATTACKS.remove(function.__name__)


# Options


def test_options_are_declared_once():
    assert AttackOptions().threat_model.eps == 8 / 255
    for options, words in (
        ({"norm": "l1"}, "unknown norm"),
        ({"eps": -1}, "eps must be at least 0"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ):
        with pytest.raises(InputError, match=words):
            AttackOptions(**options)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Attacked", "AttackResult"),
        ("Ball", "ThreatModel"),
        ("Common", "AttackOptions"),
        ("Victim", "QueryModel"),
    ],
)
def test_old_names_work_with_a_warning(old, new):
    from mixup_inference import attacks

    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(attacks, old) is getattr(attacks, new)
