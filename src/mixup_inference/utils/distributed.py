"""Several processes that share one evaluation, with the result of a single one; devices.

The batches are those of a single process, dealt out in turn, so F sees the same ones however many
processes there are. Results are put together in the order of the points, for every process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mixup_inference.errors import InputError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work; by default there is no other.

    >>> Ranks().share(["a", "b"], str.upper)
    ['A', 'B']
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise InputError(f"rank {self.rank} does not exist among {self.size} processes.")

    @classmethod
    def of(cls, fabric: Fabric | None) -> Ranks:
        """The processes that a launched Fabric connects; without one, this process alone."""
        return cls() if fabric is None else cls(fabric.global_rank, fabric.world_size)

    @classmethod
    def from_environment(cls) -> Ranks:
        """The processes that ``torchrun`` started, connected to each other; else this one alone."""
        from torch import distributed  # noqa: PLC0415

        if not distributed.is_available():
            return cls()
        if not distributed.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                return cls()
            if not join_restarted("gloo"):
                distributed.init_process_group("gloo")
            atexit.register(distributed.destroy_process_group)  # its threads outlive Python else
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def share(self, parts: Sequence[P], work: Callable[[P], T]) -> list[T]:
        """Map the work over the parts, in order; each process does every ``size``-th part.

        With several processes, tensors come back on the CPU: each may have a GPU of its own.
        """
        mine = [work(part) for part in parts[self.rank :: self.size]]
        everyone = [mine] if self.size == 1 else self._all([_on_cpu(one) for one in mine])
        return [everyone[n % self.size][n // self.size] for n in range(len(parts))]

    def total(self, number: int) -> int:
        """The sum over all processes."""
        return sum(self._all(number))

    def first(self, compute: Callable[[], T]) -> T:
        """Compute something in the first process and send it to all others, which wait."""
        if self.size == 1:
            return compute()
        from torch import distributed  # noqa: PLC0415

        box: list[Any] = [None, None]
        if self.is_first:
            try:
                box[0] = compute()
            except Exception as error:  # the others must not wait for ever
                box[1] = error
        distributed.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        out: T = box[0]
        return out

    def _all(self, value: T) -> list[T]:
        """The values of all processes."""
        if self.size == 1:
            return [value]
        from torch import distributed  # noqa: PLC0415

        out: list[Any] = [None] * self.size
        distributed.all_gather_object(out, value)
        return out


def _on_cpu(value: Any) -> Any:
    """A tensor, or tuples and lists of them, in main memory."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_on_cpu, value))
    if isinstance(value, tuple | list):
        return type(value)(map(_on_cpu, value))
    return value.cpu() if hasattr(value, "cpu") else value


ALONE = Ranks()


def join_restarted(backend: str) -> bool:
    """Connect the processes that ``torchrun`` has restarted on this machine; whether there are any.

    Its store outlives a restart, with the addresses of the processes that died. Those that come
    later would try to connect to them, so each restart gets keys of its own. With several machines
    the number of the restart may differ between them, and nothing is done.
    """
    from torch import distributed  # noqa: PLC0415
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415

    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restart == "0" or os.environ["LOCAL_WORLD_SIZE"] != os.environ["WORLD_SIZE"]:
        return False
    store, rank, size = next(rendezvous("env://"))
    own = distributed.distributed_c10d.PrefixStore(f"restart {restart}", store)
    distributed.init_process_group(backend, store=own, rank=rank, world_size=size)
    return True


def check_device(device: str) -> str:
    """Check that a device is available; "auto" takes the first of cuda, mps and cpu."""
    import torch  # noqa: PLC0415 (slow to import)

    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "cpu": torch.cpu}
    there = [name for name, backend in backends.items() if backend.is_available()]
    if device == "auto":
        return there[0]
    if device not in there:
        raise InputError(f"there is no device {device!r} here; available: {', '.join(there)}.")
    return device


def make_folder(folder: Path) -> None:
    """Create a writable folder; InputError says why that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # other processes may look at the same time
    except OSError as error:
        raise InputError(
            f"cannot write to the output folder {folder}: {error.strerror}. "
            "Choose another with --output."
        ) from None
