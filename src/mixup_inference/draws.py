"""Random numbers that belong to a sample, not to a batch.

Every number is a hash of (key, sample index, draw k, slot), where the key stands for a seed
and the name of a stream (which stage, which attack step, which repeat). So a draw does not
change with the batch size, the chunk size, the order, the number of processes or a restart,
and the global random state is never read or written.

The hash absorbs one word at a time with the finaliser of SplitMix64 (Steele et al., 2014).
Both adding a multiple of an odd constant and the finaliser are bijections of 64 bits, so two
words never collide under one prefix.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mixup_inference.errors import InputError
from mixup_inference.utils.profiling import Stage, timed
from mixup_inference.validation import check_number

#: What a stream, or a part of its name, may be called.
Stream = str | int


def _signed(word: int) -> int:
    """The 64-bit word as the int64 that torch computes with."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's ``>>`` on int64 copies the sign)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def absorb(state: Tensor, word: Tensor) -> Tensor:
    """The hash state after one more word; shapes broadcast, arithmetic wraps at 64 bits."""
    z = state + (word + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)) * _MULTIPLY_1
    z = (z ^ _shift(z, 27)) * _MULTIPLY_2
    return z ^ _shift(z, 31)


def make_key(seed: int, *stream: Stream) -> int:
    """A 64-bit key for a seed and a stream's name.

    >>> make_key(0, "attack", 3) == make_key(0, "attack", 3)
    True
    >>> make_key(0, "attack", 3) == make_key(0, "attack", "3")
    False
    """
    text = repr((int(seed), *stream)).encode()
    return _signed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


def derive_seed(seed: int, *stream: Stream) -> int:
    """A new seed (non-negative) for a part of the work, from the seed of the whole."""
    return make_key(seed, *stream) & ((1 << 63) - 1)


@dataclass(frozen=True)
class Draws:
    """The draws of some samples: rows are samples, columns are draw numbers.

    Slots tell apart the several numbers that one draw needs (a label, an image, a ratio).
    All results have shape (samples, draws), or (samples, draws, *shape) for ``normal`` and
    ``uniform_block``.

    >>> d = Draws(make_key(0, "doc"), torch.arange(5), torch.arange(3))
    >>> bool((d.uniform(0)[2:4] == Draws(d.key, torch.tensor([2, 3]), d.k).uniform(0)).all())
    True
    """

    key: int
    index: Tensor
    k: Tensor

    @classmethod
    def once(cls, key: int, index: Tensor) -> Draws:
        """A single draw for each sample; results have one column."""
        return cls(key, index, torch.zeros(1, dtype=torch.int64, device=index.device))

    def at(self, rows: slice | Tensor, k: Tensor | None = None) -> Draws:
        """The draws of some of the samples, all of them or those with the numbers ``k``.

        ``k`` of shape (rows, 1) asks for one draw of each sample.
        """
        return Draws(self.key, self.index[rows], self.k if k is None else k)

    @cached_property
    def state(self) -> Tensor:
        """The hash of (key, index, k), which all slots share; shape (samples, draws)."""
        key = torch.tensor(self.key, dtype=torch.int64, device=self.index.device)
        return absorb(absorb(key, self.index)[:, None], self.k)

    @timed(Stage.DRAWING)
    def bits(self, slot: int) -> Tensor:
        """64 random bits each, as int64."""
        return absorb(self.state, torch.tensor(slot, device=self.index.device))

    def uniform(self, slot: int) -> Tensor:
        """Uniform on [0, 1), float64 with 53 random bits."""
        return _shift(self.bits(slot), 11).double() * 2.0**-53

    def integers(self, slot: int, below: Tensor | int) -> Tensor:
        """Uniform integers in [0, below), where ``below`` broadcasts to (samples, draws)."""
        return scale_bits(self.bits(slot), below)

    def stratified(self, slot: int, cells: int) -> Tensor:
        """Uniform on [0, 1), and once in each of so many equal parts of it in every round.

        A round is ``cells`` draws; rounds do not depend on each other.
        """
        return (self.permutation(slot, cells) + self.uniform(slot)) / cells

    @timed(Stage.DRAWING)
    def permutation(self, slot: int, count: int) -> Tensor:
        """Labels 0 to count - 1 in random order, then in another one, and so on, draw by draw.

        So a sample's first n draws hold every label n / count times, rounded down or up.
        """
        if torch.compiler.is_compiling():  # an exported graph cannot look at the values of k
            return self._permutation_by_draw(slot, count)
        rounds, first = self.k // count, int(self.k.min()) // count
        numbers = torch.arange(first, int(rounds.max()) + 1, device=self.k.device)
        order = self._orders(numbers, slot, count).flatten(1)  # (samples, rounds x count)
        place = (rounds - first) * count + self.k % count
        return order.gather(1, place.expand(len(order), -1))

    def _permutation_by_draw(self, slot: int, count: int) -> Tensor:
        """The same labels; the order of a round is computed anew for each of its draws."""
        order = self._orders(self.k // count, slot, count)
        place = (self.k % count)[..., None].expand(*order.shape[:-1], 1)
        return order.gather(-1, place).squeeze(-1)

    def _orders(self, rounds: Tensor, slot: int, count: int) -> Tensor:
        """The labels in the order of each of these rounds, (samples, rounds, count)."""
        bits = Draws(self.key, self.index, rounds).bits(slot)
        keys = absorb(absorb(bits, bits.new_tensor(-2))[..., None], self._cells(count))
        return keys.argsort(-1)

    @timed(Stage.DRAWING)
    def uniform_block(self, slot: int, shape: tuple[int, ...]) -> Tensor:
        """Uniform on (0, 1), float32, a block of independent numbers per draw."""
        count = torch.Size(shape).numel()
        bits = absorb(self.bits(slot)[..., None], self._cells(count))
        unit = (_shift(bits, 41).float() + 0.5) * 2.0**-23  # never exactly 0 or 1
        return unit.reshape(*bits.shape[:-1], *shape)

    def _cells(self, count: int) -> Tensor:
        return torch.arange(count, device=self.index.device)

    @timed(Stage.DRAWING)
    def normal(self, slot: int, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers, float32, by inversion: one number, one hash."""
        out: Tensor = torch.special.ndtri(self.uniform_block(slot, shape))
        return out


def scale_bits(bits: Tensor, below: Tensor | int) -> Tensor:
    """Map random bits to [0, below) with the top 31 of them, in exact integer arithmetic."""
    return (_shift(bits, 33) * below) >> 31


@dataclass(frozen=True)
class Uniform:
    """A mixing ratio drawn uniformly from [low, high], anew for every draw (Appendix B.1)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_number(self.low, what="the lower end of Uniform", least=0, most=1)
        check_number(self.high, what="the upper end of Uniform", least=0, most=1)
        if self.low > self.high:
            raise InputError(f"Uniform needs low <= high; saw {self.low} > {self.high}.")

    def quantile(self, u: Tensor) -> Tensor:
        """The value below which a share ``u`` of the distribution lies."""
        return self.low + (self.high - self.low) * u


@dataclass(frozen=True)
class Beta:
    """A mixing ratio drawn from Beta(a, b), anew for every draw (Section 2.2, Appendix B.1)."""

    a: float
    b: float

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if check_number(value, what=f"{name} of Beta", least=0) == 0:
                raise InputError(f"{name} of Beta must be positive; saw 0.")

    def quantile(self, u: Tensor) -> Tensor:
        """The value below which a share ``u`` of the distribution lies."""
        if self.a == self.b == 1:
            return u
        from scipy.special import betaincinv  # noqa: PLC0415 (slow to import, rarely needed)

        values = betaincinv(self.a, self.b, u.cpu().double().numpy())
        return torch.from_numpy(values).to(u)
