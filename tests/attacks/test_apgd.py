from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mixup_inference import InputError, MixupInference, make_defense, pgd
from mixup_inference.attacks import judge
from mixup_inference.attacks.apgd import apgd_eot
from mixup_inference.attacks.losses import LOSSES
from mixup_inference.attacks.query import QueryModel
from mixup_inference.defenses import GaussianNoise

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5))
X = torch.rand(9, 1, 6, 6)
Y = torch.arange(9) % 5
SIZES = {"linf": lambda delta: delta.flatten(1).abs().amax(1),
         "l2": lambda delta: delta.flatten(1).norm(dim=1)}  # fmt: skip


class Shaky(nn.Module):
    """Two classes; the margin is a bump of the image's distance to a pattern, plus pure noise."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, x):
        pattern = torch.arange(x[0].numel()).view(x[0].shape).sin().abs()
        bump = -20 * ((x - pattern) ** 2).flatten(1).sum(1)
        return torch.stack([torch.zeros_like(bump), bump + self.sigma * torch.randn(len(x))], 1)


def linear(classes: int, norm: str):
    """A linear model, and points in [0, 1] that are all 0.02 away from their nearest border."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, classes))
    weights = torch.randn(classes, 16, generator=generator)
    model[1].weight.data, model[1].bias.data = weights, -weights.sum(1) / 2
    delta = torch.randn(20, 1, 4, 4, generator=generator)
    logits = model(0.5 + delta).detach()
    y = logits.argmax(1)
    apart = weights[y][:, None] - weights[None]
    slope = apart.abs().sum(2) if norm == "linf" else apart.norm(dim=2)
    lead = logits.gather(1, y[:, None]) - logits
    far = (lead / slope).nan_to_num(nan=torch.inf).amin(1)
    x = 0.5 + 0.02 * delta / far[:, None, None, None]  # logits grow in step with x - 0.5
    near = (x > 0.02).flatten(1).all(1) & (x < 0.98).flatten(1).all(1)
    assert int(near.sum()) > 5
    return model, x[near], y[near]


@settings(max_examples=15)
@given(
    eps=st.floats(0, 2),
    steps=st.integers(0, 5),
    norm=st.sampled_from(["linf", "l2"]),
    goal=st.sampled_from([{}, {"targeted": True}, {"target_classes": 9}]),
    loss=st.sampled_from(["ce", "dlr"]),
    sigma=st.sampled_from([None, 0.3]),
)
def test_stays_in_the_ball_and_in_range(eps, steps, norm, goal, loss, sigma):
    victim = MODEL if sigma is None else GaussianNoise(MODEL, sigma=sigma)
    out = apgd_eot(victim, X, Y, eps=eps, steps=steps, norm=norm, loss=loss, draws=2, **goal)
    assert bool((SIZES[norm](out.examples - X) <= eps + 1e-6).all())
    assert 0 <= float(out.examples.min()) <= float(out.examples.max()) <= 1
    torch.testing.assert_close(getattr(out, norm), SIZES[norm](out.examples - X))
    if eps == 0:
        torch.testing.assert_close(out.examples, X)


@settings(max_examples=4)
@given(rows=st.permutations(range(9)), batch_size=st.integers(1, 20))
def test_each_point_is_attacked_on_its_own(rows, batch_size):
    """In double precision, where no gradient is so small that rounding decides its sign."""
    index, x = torch.arange(9) + 100, X.double()
    model = copy.deepcopy(MODEL).double()
    for victim in (model, GaussianNoise(model, sigma=0.3, draws=2)):
        for goal in ({"targeted": True, "loss": "dlr"}, {"target_classes": 2}):
            common = {"eps": 0.2, "steps": 3, "draws": 2, **goal}
            whole = apgd_eot(victim, x, Y, index=index, **common)
            mixed = apgd_eot(victim, x[rows], Y[rows], index=index[rows], batch_size=batch_size,
                             **common)  # fmt: skip
            torch.testing.assert_close(mixed.examples, whole.examples[rows])
            torch.testing.assert_close(mixed.loss, whole.loss[rows])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_starts_on_the_surface_of_the_ball(norm):
    grey = torch.full((9, 1, 6, 6), 0.5)
    out = apgd_eot(MODEL, grey, Y, steps=0, eps=0.3, norm=norm)
    torch.testing.assert_close(SIZES[norm](out.examples - grey), torch.full((9,), 0.3))
    other = apgd_eot(MODEL, grey, Y, steps=0, eps=0.3, norm=norm, seed=1)
    assert not torch.equal(out.examples, other.examples)


def test_a_given_start_follows_its_point():
    start = (X + 0.1 * torch.randn_like(X)).clamp(0, 1)
    out = apgd_eot(MODEL, X, Y, steps=0, eps=0.05, start=start, batch_size=2)
    torch.testing.assert_close(out.examples, torch.clamp(start, X - 0.05, X + 0.05))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "dlr"])
@pytest.mark.parametrize("goal", [{}, {"targeted": True}])
def test_never_ends_below_its_start(trained, parts, norm, loss, goal):
    """Steps of twice eps overshoot, so that the last iterate alone would not do."""
    x, y = parts["test"].pixels[:40], parts["test"].labels[:40]
    common = {"eps": 0.05 if norm == "linf" else 0.3, "norm": norm, "loss": loss, **goal}
    first = apgd_eot(trained, x, y, steps=0, **common)
    for steps in (1, 3, 12):
        out = apgd_eot(trained, x, y, steps=steps, **common)
        assert bool((out.loss >= first.loss - 1e-6).all())
        assert out.trace.shape == (steps + 1,)
        assert float(out.trace[0]) == pytest.approx(float(first.loss.mean()), abs=1e-6)
        assert float(out.loss.mean()) >= float(out.trace.max()) - 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("classes", "options"),
    [
        (2, {"loss": "ce"}),
        (2, {"loss": "dlr"}),
        (2, {"target_classes": 9}),
        (3, {"target_classes": 9}),
        (5, {"target_classes": 9}),
    ],
)
def test_linear_models_break_just_above_the_distance_and_never_below(classes, norm, options):
    """With several classes the nearest border is found by trying each."""
    model, x, y = linear(classes, norm)
    for factor, broken in ((0.99, False), (1.01, True)):
        out = apgd_eot(model, x, y, eps=0.02 * factor, norm=norm, steps=20, **options)
        assert bool((out.fooled == broken).all())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("options", [{}, {"targeted": True, "loss": "ce"}, {"target_classes": 9}])
def test_few_classes(classes, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, classes))
    y = model(X).argmax(1)
    common = {"eps": 0.3, "loss": "dlr", **options}
    first = apgd_eot(model, X, y, steps=0, **common)
    out = apgd_eot(model, X, y, steps=10, **common)
    assert bool(torch.isfinite(out.loss).all())
    assert bool(((out.loss > first.loss) | (first.loss == 1)).all())  # 1: y is last of three


def test_several_targets_give_the_best_of_each():
    start = (X + 0.1 * torch.randn_like(X)).clamp(0, 1)
    common = {"eps": 0.1, "steps": 8, "start": start}
    out = apgd_eot(MODEL, X, Y, target_classes=4, **common)

    def lead(images):
        return LOSSES["log-margin"](torch.log_softmax(MODEL(images), 1)[:, None], Y, None).detach()

    each = torch.stack([
        lead(apgd_eot(MODEL, X, Y, loss="dlr", targets=(Y + other) % 5, **common).examples)
        for other in range(1, 5)
    ])  # fmt: skip
    # Not less; more where the last iterate has a better margin than the one with the best loss.
    assert bool((out.loss >= each.amax(0) - 1e-5).all())
    assert float((out.loss - each.amax(0)).median()) == pytest.approx(0, abs=1e-5)
    assert len(set(each.argmax(0).tolist())) > 1
    likely = apgd_eot(MODEL, X, Y, target_classes=1, **common)
    ranked = MODEL(X).scatter(1, Y[:, None], -torch.inf).argmax(1)
    alone = apgd_eot(MODEL, X, Y, loss="dlr", targets=ranked, **common)
    assert torch.equal(likely.examples, alone.examples)


def test_restarts_help():
    x, y = X.repeat(4, 1, 1, 1), Y.repeat(4)
    common = {"eps": 0.3, "steps": 3, "loss": "dlr"}
    one, many = (apgd_eot(MODEL, x, y, restarts=count, **common) for count in (1, 5))
    assert bool((many.loss >= one.loss).all())
    assert bool((many.loss > one.loss).any())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_without_noise_a_random_defence_is_attacked_like_its_model(trained, parts, norm):
    x, y = parts["test"].pixels[:20].double(), parts["test"].labels[:20]
    model = copy.deepcopy(trained).double()
    common = {"eps": 0.05, "norm": norm, "steps": 20}
    plain = apgd_eot(model, x, y, **common)
    for fresh in (True, False):
        noise = apgd_eot(GaussianNoise(model, sigma=0), x, y, draws=3, fresh=fresh, **common)
        torch.testing.assert_close(noise.examples, plain.examples)
        torch.testing.assert_close(noise.loss, plain.loss)
        torch.testing.assert_close(noise.trace, plain.trace)


@pytest.mark.parametrize("fresh", [True, False])
def test_noise_that_is_the_same_for_all_images_changes_nothing(fresh):
    """Losses are compared on common draws: whatever they add to all images cancels."""
    x = X[:8, :, :4, :4].double()
    y = torch.zeros(8, dtype=torch.long)
    common = {"eps": 0.4, "steps": 30, "loss": "dlr", "draws": 1}
    calm, shaken = (apgd_eot(Shaky(sigma), x, y, fresh=fresh, **common) for sigma in (0.0, 50.0))
    torch.testing.assert_close(shaken.examples, calm.examples)


def test_the_loss_of_the_result_is_not_the_luckiest(trained, parts):
    """Estimated on draws that chose nothing, it agrees with yet other draws."""
    x, y = parts["test"].pixels[:150], parts["test"].labels[:150]
    defense = GaussianNoise(trained, sigma=0.4)
    out = apgd_eot(defense, x, y, eps=0.3, steps=1, draws=1, restarts=8)
    log_p = QueryModel(defense, x).log_probs(out.examples, torch.arange(150), 64, "another")
    each = torch.stack([LOSSES["ce"](log_p[:, k : k + 1], y, None) for k in range(64)])
    error = (each.var(0).mean() / 150).sqrt()
    assert abs(float(out.loss.mean() - each.mean())) < 3 * float(error)


@pytest.mark.parametrize(
    ("kind", "settings", "eps"),
    [("mi-ol", {"lam": 0.6}, 0.1), ("rotation", {"degrees": 25.0}, 0.12)],
)
@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_knows_a_random_defence_better_than_an_oblivious_attack(
    trained, pool, parts, kind, settings, eps, loss
):
    x, y = parts["test"].pixels[:50], parts["test"].labels[:50]
    defense = make_defense(kind, trained, pool, draws=8, **settings)
    out = apgd_eot(defense, x, y, eps=eps, steps=15, draws=6, loss=loss)
    oblivious = pgd(trained, x, y, eps=eps, step=eps / 4, steps=15)
    blind = judge(defense, oblivious, y, repeats=5)
    assert float(out.success.mean()) > float(blind.double().mean()) + 0.05


@pytest.mark.parametrize("runs", [{}, {"restarts": 3}, {"target_classes": 2, "restarts": 2}])
@pytest.mark.parametrize("kind", ["model", "fresh", "common", "mi", "frozen"])
def test_passes_are_counted_exactly(pool, kind, runs):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y, steps, draws = torch.rand(5, 1, 8, 8), torch.arange(5), 7, 3
    victim = {
        "mi": MixupInference(model, pool, draws=4),
        "frozen": GaussianNoise(model, draws=4, fresh=False),
        "model": model,
    }.get(kind, GaussianNoise(model, draws=4))
    out = apgd_eot(victim, x, y, steps=steps, draws=draws, fresh=kind != "common", **runs)
    classes = runs.get("target_classes", 0)
    count = runs.get("restarts", 1) * max(1, classes)
    # A look is draws copies of the image; mixup inference asks for the prediction on it first.
    forward = {"model": 1, "frozen": 4, "mi": draws + 1}.get(kind, draws)
    backward = {"mi": draws}.get(kind, forward)
    again = 2 * steps if kind in ("fresh", "mi") else 0
    assert out.forward == 5 * forward * (count * (steps + 1 + again + 2) + 1 + (classes > 0))
    assert out.backward == 5 * backward * count * (steps + 1)


@pytest.mark.usefixtures("same_global_state")
def test_leaves_model_and_global_state_alone():
    MODEL.train()
    out = apgd_eot(MODEL, X, Y, steps=2)
    apgd_eot(Shaky(1.0), X, Y % 2, steps=2)
    assert not out.examples.requires_grad
    assert not out.loss.requires_grad
    assert MODEL.training
    assert all(p.grad is None for p in MODEL.parameters())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "margin"}, "unknown loss 'margin'"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"target_classes": -1}, "target_classes must be at least 0"),
        ({"target_classes": 2, "targeted": True}, "leave out targeted"),
        ({"target_classes": 2, "targets": Y}, "leave out targeted"),
        ({"start": X[:4]}, r"shape of x, \(9, 1, 6, 6\); saw \(4, 1, 6, 6\)"),
        ({"start": 255 * X}, "pixels of start"),
        ({"norm": "l3"}, "unknown norm"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(InputError, match=words):
        apgd_eot(MODEL, X, Y, **settings)


def test_a_single_class_has_no_targets():
    with pytest.raises(InputError, match="at least two classes"):
        apgd_eot(nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), X, 0 * Y, target_classes=1)
    with pytest.raises(InputError, match="label 7"):
        apgd_eot(MODEL, X, Y * 0 + 7, target_classes=1)
