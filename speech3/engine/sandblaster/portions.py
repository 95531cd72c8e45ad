"""Who computes which portion of a gradient: handed out on demand, the last ones twice (Dean et al. 2012, section 4.2).

A worker that is free gets a portion; there are far more portions than workers, so fast ones do more. Where none is left, a
free worker gets one that another has had for the longest time: a backup task, as MapReduce has them. The first to have
computed a portion is told to keep it, the second is not, so none is counted twice.
"""

from collections import deque


class Portions:
    """The portions of one evaluation, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.out: dict[int, list[int]] = {}  # portion: workers that compute it; the longest out comes first
        self.kept: dict[int, int] = {}  # portion: worker in whose sum it is
        self.count = count

    def hand(self, worker: int) -> int | None:
        """A portion for a free worker; none: there is nothing left that it could help with."""
        if self.waiting:
            portion = self.waiting.popleft()
            self.out[portion] = [worker]
            return portion
        for portion, others in self.out.items():
            if len(others) == 1 and worker not in others:
                others.append(worker)
                return portion
        return None

    def computed(self, worker: int, portion: int) -> bool:
        """A worker has computed a portion; is it to keep it?"""
        if worker not in self.out.get(portion, ()):
            return False
        del self.out[portion]
        self.kept[portion] = worker
        return True

    def lost(self, worker: int) -> int:
        """A worker died, and its sum with it: what was in there waits again. Returns how many."""
        back = [portion for portion, keeper in self.kept.items() if keeper == worker]
        for portion in back:
            del self.kept[portion]
        for portion in [portion for portion, workers in self.out.items() if worker in workers]:
            self.out[portion].remove(worker)
            if not self.out[portion]:
                del self.out[portion]
                back.append(portion)
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
