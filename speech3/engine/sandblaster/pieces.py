"""Who computes which piece of a gradient: handed out on demand, the last ones twice (Dean et al. 2012, section 4.2).

A worker that is free gets a piece; there are far more pieces than workers, so fast ones do more. Where none is left, a
free worker gets one that another has had for the longest time: a backup task, as MapReduce has them. The first to have
computed a piece is told to keep it, the second is not, so none is counted twice.
"""

from collections import deque


class Pieces:
    """The pieces of one evaluation, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.out: dict[int, list[int]] = {}  # piece: workers that compute it; the longest out comes first
        self.kept: dict[int, int] = {}  # piece: worker in whose sum it is
        self.count = count

    def hand(self, worker: int) -> int | None:
        """A piece for a free worker; none: there is nothing left that it could help with."""
        if self.waiting:
            piece = self.waiting.popleft()
            self.out[piece] = [worker]
            return piece
        for piece, others in self.out.items():
            if len(others) == 1 and worker not in others:
                others.append(worker)
                return piece
        return None

    def computed(self, worker: int, piece: int) -> bool:
        """A worker has computed a piece; is it to keep it?"""
        if worker not in self.out.get(piece, ()):
            return False
        del self.out[piece]
        self.kept[piece] = worker
        return True

    def lost(self, worker: int) -> int:
        """A worker died, and its sum with it: what was in there waits again. Returns how many."""
        back = [piece for piece, keeper in self.kept.items() if keeper == worker]
        for piece in back:
            del self.kept[piece]
        for piece in [piece for piece, workers in self.out.items() if worker in workers]:
            self.out[piece].remove(worker)
            if not self.out[piece]:
                del self.out[piece]
                back.append(piece)
        self.waiting.extendleft(reversed(back))
        return len(back)

    @property
    def finished(self) -> bool:
        """Each is in a sum."""
        return len(self.kept) == self.count

    @property
    def keepers(self) -> tuple[int, ...]:
        """Workers in whose sums they are."""
        return tuple(sorted(set(self.kept.values())))
