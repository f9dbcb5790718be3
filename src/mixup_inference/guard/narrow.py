"""The same draws in integers below 2^31, for engines that compute int64 in 32 bits.

OpenVINO's CPU plugin does that without a word, and with ``draws.absorb`` it would draw something
else. Here a word of 64 bits is five limbs, lowest first: four of 13 bits and one of 12. Sums of
products of limbs fit into 31 bits and no operation sees a negative number. It also divides integers
as floats where others shift them, so the bits that a shift drops are cleared before. The numbers
drawn are those of ``Draws``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor

from mixup_inference.draws import _GOLDEN, _MULTIPLY_1, _MULTIPLY_2, Draws

BITS, LIMBS = 13, 5
WIDTHS = (BITS, BITS, BITS, BITS, 12)
MASKS = tuple((1 << width) - 1 for width in WIDTHS)

#: Limbs, lowest first; missing ones are zero.
Word = tuple[Tensor | int, ...]

#: A product of a limb and the number of images of a class must fit into 31 bits.
MOST = 1 << 17


def word_of(number: Tensor) -> Word:
    """The limbs of int64 numbers; in an engine of 32 bits, of those that are not negative."""
    limbs: list[Tensor] = []
    for mask, width in zip(MASKS, WIDTHS, strict=True):
        limbs.append(number & mask)
        number = (number - limbs[-1]) >> width
    return tuple(limbs)


def constant(number: int) -> tuple[int, ...]:
    """The limbs of a 64-bit constant."""
    return tuple((number >> BITS * place) & mask for place, mask in enumerate(MASKS))


def add(*words: Word) -> Word:
    """The sum modulo 2^64, of words whose limbs may be larger than their width."""
    out: list[Tensor | int] = []
    carry: Tensor | int = 0
    for limbs, mask, width in zip(zip_longest(*words, fillvalue=0), MASKS, WIDTHS, strict=True):
        total: Tensor | int = sum(limbs) + carry
        out.append(total & mask)
        carry = (total - out[-1]) >> width
    return tuple(out)


def products(word: Word, factor: tuple[int, ...]) -> Word:
    """The product modulo 2^64, before carrying."""
    return tuple(
        sum(word[i] * factor[place - i] for i in range(min(place + 1, len(word))))
        for place in range(LIMBS)
    )


def xor_shifted(z: Word, bits: int) -> Word:
    """Z ^ (z >> bits), a logical shift."""
    skipped, rest = divmod(bits, BITS)
    out = list(z)
    for place in range(LIMBS - skipped):
        shifted = z[place + skipped] >> rest
        if place + skipped + 1 < LIMBS:
            shifted = shifted | (z[place + skipped + 1] << (BITS - rest)) & MASKS[0]
        out[place] = z[place] ^ shifted
    return tuple(out)


def absorb(state: Word, word: Word) -> Word:
    """``draws.absorb``."""
    golden = constant(_GOLDEN)
    z = add(state, products(word, golden), golden)
    z = add(products(xor_shifted(z, 30), constant(_MULTIPLY_1)))
    z = add(products(xor_shifted(z, 27), constant(_MULTIPLY_2)))
    return xor_shifted(z, 31)


def scale(z: Word, below: Tensor | int, *, bits: int) -> Tensor:
    """The integers in [0, below) that the highest bits of random words stand for."""
    cleared, carry = 64 - bits, torch.zeros((), dtype=torch.int64)
    for place, (limb, width) in enumerate(zip(z, WIDTHS, strict=True)):
        low = min(max(cleared - BITS * place, 0), width)
        kept = limb & (MASKS[place] >> low << low)
        total = kept * below + carry
        carry = (total - (total & MASKS[place])) >> width
    return carry


@dataclass(frozen=True)
class NarrowDraws(Draws):
    """Independent draws for a graph; their uniform numbers are the centres of ``cells`` cells."""

    cells: int = 1

    @classmethod
    def of(cls, numbers: Draws, cells: int) -> NarrowDraws:
        """The same draws; ``cells`` is how many labels one is drawn from."""
        return cls(numbers.key, numbers.index, numbers.k, cells)

    @cached_property
    def _state(self) -> Word:
        index = absorb(constant(self.key), word_of(self.index[:, None]))
        return absorb(index, (self.k,))

    def uniform(self, slot: int) -> Tensor:
        """Uniform numbers, as far as it matters for the choice of a label."""
        cell = scale(absorb(self._state, (slot,)), self.cells, bits=53)
        return (cell.double() + 0.5) / self.cells

    def integers(self, slot: int, below: Tensor | int) -> Tensor:
        """Uniform integers in [0, below)."""
        return scale(absorb(self._state, (slot,)), below, bits=31)
