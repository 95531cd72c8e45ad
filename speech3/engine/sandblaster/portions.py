"""Load balancing: portions of a gradient are assigned on demand, the last ones twice (Dean et al. 2012, section 4.2).

A free worker is assigned a new portion; there are many more portions than workers, so fast workers compute more. When
all are assigned, a free worker gets a copy of the portion that has been outstanding longest: a backup task, as in
MapReduce. Only the result of the first worker to finish a portion is kept, so none counts twice.
"""

from collections import deque


class Portions:
    """The portions of one evaluation, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.out: dict[int, list[int]] = {}  # portion -> workers that compute it; the longest outstanding first
        self.kept: dict[int, int] = {}  # portion -> worker whose sum contains it
        self.count = count

    def assign(self, worker: int) -> int | None:
        """Assign a portion to a free worker; None if there is none left that it could compute."""
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
        """Record that a worker computed a portion; returns whether the worker keeps the result."""
        if worker not in self.out.get(portion, ()):
            return False
        del self.out[portion]
        self.kept[portion] = worker
        return True

    def lost(self, worker: int) -> int:
        """A worker died and its sum is lost: its portions wait again. Returns how many they are."""
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
        """Every portion is in some worker's sum."""
        return len(self.kept) == self.count

    @property
    def keepers(self) -> tuple[int, ...]:
        """Workers whose sums contain portions."""
        return tuple(sorted(set(self.kept.values())))
