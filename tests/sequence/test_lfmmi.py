"""The criterion against enumeration, finite differences and PyTorch's autograd."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from denominators import enumerated_log_z, enumerated_numerator, enumerated_paths, log_prob, toy_denominator
from torch.utils._python_dispatch import TorchDispatchMode

from speech3.errors import Speech3Error
from speech3.frames.chunks import Chunk, Taught
from speech3.frames.packed import segment_labels
from speech3.sequence.forward_backward import compiled_passes, denominator_log_z
from speech3.sequence.graph import NEVER, START, UNSEEN, estimate_phone_lm, numerator_posteriors
from speech3.sequence.lfmmi import AlignmentNumerators, LfMmi, assemble

LEAK = 0.1


def outputs(frames: int, pdfs: int, batch: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(frames, pdfs, batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(phones: list[int], lengths: list[int]) -> np.ndarray:
    return segment_labels(np.array(phones), np.cumsum([0, *lengths]))


def possible_phones(graph, count: int, seed: int = 0) -> list[int]:
    """Phones that the phone language model has seen after one another."""
    generator, state, phones = np.random.default_rng(seed), START, []
    while len(phones) < count:
        first, end = graph.lm.ptr_J1[state : state + 2]
        if first == end:
            state, phones = START, []
            continue
        arc = int(generator.integers(first, end))
        phones.append(int(graph.lm.arc_phone_A[arc]))
        state = int(graph.lm.next_A[arc])
    return phones


@pytest.mark.parametrize("seed", range(3))
def test_denominator_equals_enumeration(seed: int) -> None:
    graph = toy_denominator(seed)
    y = outputs(3, graph.num_pdfs, 1, seed)
    expected = enumerated_log_z(y[:, :, 0].numpy(), graph, LEAK)
    assert denominator_log_z(y, graph, LEAK).item() == pytest.approx(expected, abs=1e-9)
    log_z, _ = compiled_passes(y.exp().float().numpy(), graph, LEAK)
    assert log_z[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("leak", [1e-6, 0.5])
def test_the_leak_counts_as_enumerated(leak: float) -> None:
    graph = toy_denominator(1)
    y = outputs(3, graph.num_pdfs, 1)
    expected = enumerated_log_z(y[:, :, 0].numpy(), graph, leak)
    assert denominator_log_z(y, graph, leak).item() == pytest.approx(expected, abs=1e-9)
    assert compiled_passes(y.exp().float().numpy(), graph, leak)[0][0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("batch", [1, 5, 16, 33])
def test_compiled_gradient_equals_autograd_through_sparse_products(batch: int) -> None:
    graph = toy_denominator(2, phones=6, pdfs=20)
    y = (3 * outputs(12, graph.num_pdfs, batch)).requires_grad_()
    log_z = denominator_log_z(y, graph, LEAK)
    (expected,) = torch.autograd.grad(log_z.sum(), y)
    found, posterior = compiled_passes((y - y.amax(1, keepdim=True)).exp().detach().float().numpy(), graph, LEAK)
    np.testing.assert_allclose(found + y.amax(1).sum(0).detach().numpy(), log_z.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(posterior, expected.numpy(), atol=2e-5)
    np.testing.assert_allclose(posterior.sum(1), 1, atol=1e-4)


class _Sparse(TorchDispatchMode):
    """The operations that have sparse tensors in them, or make some, with their layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.layout]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in (*args, made):
            if isinstance(each, torch.Tensor) and each.layout != torch.strided:
                self.seen.append((func.overloadpacket.__name__, each.layout))
        return made


def test_sparse_products_convert_no_matrix() -> None:
    """Neither forward nor backward, for every frame; and what is on a device stays there for the next minibatch."""
    graph, frames = toy_denominator(2, phones=6, pdfs=20), 5
    y = outputs(frames, graph.num_pdfs, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: denominator_log_z(y, graph, LEAK), y)
    with _Sparse() as sparse:
        torch.autograd.grad(denominator_log_z(y, graph, LEAK).sum(), y)
    assert {layout for _, layout in sparse.seen} == {torch.sparse_csr}
    products = [name for name, _ in sparse.seen if name not in ("detach", "alias", "view")]
    assert set(products) <= {"mm", "addmm", "_sparse_mm"} and len(products) == 2 * frames - 1  # none into the first


@pytest.mark.parametrize("tolerance", [0, 1, 2])
def test_numerator_of_a_whole_utterance_equals_enumeration(tolerance: int) -> None:
    graph = toy_denominator(0)
    phones = possible_phones(graph, 3)
    maker = AlignmentNumerators(graph, frames=24, tolerance=tolerance, leaky_hmm_coefficient=LEAK)
    numerators = maker([Chunk(labels_of(phones, [9, 6, 9]), 0)])
    y = outputs(8, graph.num_pdfs, 1)[:, :, 0]
    expected = enumerated_numerator(y.numpy(), phones, [0, 3, 5], graph, graph.lm, tolerance)
    log_z, posterior = numerator_posteriors(y[None].numpy(), numerators)
    assert log_z[0] == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(posterior.sum(2), 1, atol=1e-9)


def test_numerator_posteriors_are_the_gradient() -> None:
    graph = toy_denominator(3)
    maker = AlignmentNumerators(graph, frames=18, leaky_hmm_coefficient=LEAK)
    numerators = maker(
        [Chunk(labels_of(possible_phones(graph, 5), [5, 7, 6, 9, 9]), 7), Chunk(labels_of([1, 2], [9, 9]), 0)]
    )
    y = outputs(6, graph.num_pdfs, 2).permute(2, 0, 1).contiguous().numpy()
    _, posterior = numerator_posteriors(y, numerators)
    step = 1e-5
    for place in itertools.product(range(2), range(0, 6, 2), range(graph.num_pdfs)):
        ahead, back = y.copy(), y.copy()
        ahead[place] += step
        back[place] -= step
        difference = (numerator_posteriors(ahead, numerators)[0] - numerator_posteriors(back, numerators)[0])[place[0]]
        assert posterior[place] == pytest.approx(difference / (2 * step), abs=1e-6)


@pytest.mark.parametrize("start", [0, 1, 4, 10, 17])
@pytest.mark.parametrize("speed", [0.9, 1.0, 1.1])
def test_numerator_is_never_above_the_denominator(start: int, speed: float) -> None:
    graph = toy_denominator(4)
    labels = labels_of([*possible_phones(graph, 6), 3, 3], [4, 5, 3, 6, 8, 3, 4, 5])
    numerators = AlignmentNumerators(graph, frames=18, leaky_hmm_coefficient=LEAK)([Chunk(labels, start, speed)])
    for seed in range(5):
        y = 4 * outputs(6, graph.num_pdfs, 1, seed)
        log_z, _ = numerator_posteriors(y.permute(2, 0, 1).contiguous().numpy(), numerators)
        assert np.isfinite(log_z[0])
        assert log_z[0] <= denominator_log_z(y, graph, LEAK).item() + 1e-9


@pytest.mark.parametrize("start", [0, 1, 4, 11, 23])
@pytest.mark.parametrize("speed", [0.8, 1.0, 1.25])
def test_phones_lie_where_the_alignment_has_them(start: int, speed: float) -> None:
    graph, tolerance, outputs_T = toy_denominator(4), 1, 6
    phones, lengths = [*possible_phones(graph, 6), 3, 3], [4, 5, 13, 6, 8, 3, 4, 5]
    labels = labels_of(phones, lengths)
    found = AlignmentNumerators(graph, frames=18, tolerance=tolerance, leaky_hmm_coefficient=LEAK)(
        [Chunk(labels, start, speed)]
    )
    begins = np.cumsum([0, *lengths])
    # The phone of an output is that of the frame in its middle; linear search for the first output of each phone.
    middle = start + speed * (3 * np.arange(-60, 60) + 1)
    first = [int(np.argmax(middle >= begin - 1e-9)) - 60 for begin in begins[:-1]]
    low, high = (np.array(first) - tolerance).tolist(), [b - 1 + tolerance for b in first[1:]] + [outputs_T]
    inside = [k for k in range(len(phones)) if high[k] >= -1 and low[k] < outputs_T]
    if start == 0:
        low = [max(0, each) for each in low]
        assert (found.first_K[0], found.low_K[0], found.high_K[0]) == (-1, -1, -1)
    offset = 1 if start == 0 else 0
    assert len(found.first_K) == len(inside) + offset
    for n, k in enumerate(inside, start=offset):
        before = phones[k - 1] if k else 0
        assert (found.first_K[n], found.loop_K[n]) == tuple(graph.pdfs_PP2[before, phones[k]])
        assert (found.low_K[n], found.high_K[n]) == (low[k], max(low[k], high[k]))
        if k < 6:  # what the phone language model has seen
            state = START
            for phone in phones[: k + 1]:
                arc = graph.lm.arc(state, phone)
                state = graph.lm.next_A[arc]
            arcs = slice(*found.arc_ptr_K1[n : n + 2])
            assert found.src_A[arcs].tolist() == ([n - 1] if n else [])
            assert found.weight_A[arcs] == pytest.approx(np.log([graph.lm.prob_A[arc]])[: len(found.src_A[arcs])])
            may_begin = low[k] <= -1 <= high[k]
            assert found.begin_K[n] == pytest.approx(math.log(graph.initial_J[state]) if may_begin else NEVER)


def test_a_chunk_begins_in_the_state_that_its_utterance_has_reached() -> None:
    generator, often = np.random.default_rng(1), 1 / np.arange(1, 13)
    said = [(1 + generator.choice(12, 80, p=often / often.sum())).tolist() for _ in range(60)]
    lm = estimate_phone_lm(said, extra_lm_states=600)
    graph = assemble(lm, 2, np.zeros((13, 13, 2), np.int32))
    for phones in said:
        state, log_probs = START, []
        for phone in phones:
            arc = lm.arc(state, phone)
            state = lm.next_A[arc]
            log_probs.append(math.log(lm.prob_A[arc]))
        labels = labels_of(phones, [3] * len(phones))
        for start in range(30, 200, 7):
            found = AlignmentNumerators(graph, frames=30, tolerance=1, leaky_hmm_coefficient=LEAK)(
                [Chunk(labels, start, 1.0)]
            )
            near = range(start // 3 - 5, start // 3 + 2)
            places = (log_probs[k : k + len(found.weight_A)] for k in near)
            assert any(np.allclose(found.weight_A, each) for each in places), start


def test_loss_has_the_gradient_of_its_value() -> None:
    graph = toy_denominator(5)
    numerators = AlignmentNumerators(graph, frames=12, leaky_hmm_coefficient=LEAK)(
        [Chunk(labels_of(possible_phones(graph, 3), [4, 4, 4]), 0)]
    )
    criterion = LfMmi(graph, leaky_hmm_coefficient=LEAK, cross_entropy=0.3, l2=0.01)
    both = [outputs(4, graph.num_pdfs, 1, seed).permute(2, 0, 1).clone() for seed in (0, 1)]
    assert torch.autograd.gradcheck(lambda y: criterion(y, numerators)[0], both[0].clone().requires_grad_())
    # The targets of the second output are constants.
    assert torch.autograd.gradcheck(lambda y: criterion((both[0], y), numerators)[0], both[1].clone().requires_grad_())
    loss, _ = criterion((both[0].float(), both[1].float()), numerators)
    exact, _ = criterion((both[0], both[1]), numerators)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_with_a_teacher_alone_the_loss_is_the_divergence_of_its_paths_but_for_a_constant() -> None:
    graph = toy_denominator(3)
    numerators = AlignmentNumerators(graph, frames=9, leaky_hmm_coefficient=LEAK)(
        [Chunk(labels_of(possible_phones(graph, 2), [5, 4]), 0)]
    )
    teacher, *students = (2 * outputs(3, graph.num_pdfs, 1, seed).permute(2, 0, 1) for seed in range(4))

    def probabilities(y_BTS: torch.Tensor) -> np.ndarray:
        weights = np.array([weight for weight, _ in enumerated_paths(y_BTS[0].numpy(), graph, LEAK)])
        return weights / weights.sum()

    criterion = LfMmi(graph, leaky_hmm_coefficient=LEAK, l2=0.0, teaching=1.0)
    known = probabilities(teacher)
    losses = [3 * criterion(y, Taught(numerators, teacher))[0].item() for y in students]
    divergences = [(known * np.log(known / probabilities(y))).sum() for y in students]
    assert np.ptp(divergences) > 0.5
    np.testing.assert_allclose(np.diff(losses), np.diff(divergences), atol=1e-9)
    learnt = teacher.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(criterion(learnt, Taught(numerators, teacher))[0], learnt)
    np.testing.assert_allclose(gradient.numpy(), 0, atol=1e-12)


def test_a_teacher_shares_the_targets_with_the_transcript() -> None:
    graph = toy_denominator(5)
    fits, not_fits = Chunk(labels_of([1, 2], [6, 6]), 0), Chunk(labels_of([1, 2, 1, 2, 3, 1, 2, 1], [1] * 7 + [2]), 0)
    numerators = AlignmentNumerators(graph, frames=12, leaky_hmm_coefficient=LEAK)([fits, not_fits])
    one, two, teacher = (outputs(4, graph.num_pdfs, 2, seed).permute(2, 0, 1).clone() for seed in range(3))
    taught = Taught(numerators, teacher)
    assert (len(taught), taught.left_out) == (4, 4)
    shares = [LfMmi(graph, LEAK, 0.3, 0.01, share)((one, two), taught) for share in (0.0, 0.4, 1.0)]
    expected = 0.6 * shares[0][0] + 0.4 * shares[2][0]
    assert shares[1][0].item() == pytest.approx(expected.item()) and len({int(right) for _, right in shares}) == 1
    assert shares[0][0].item() == LfMmi(graph, LEAK, 0.3, 0.01)((one, two), numerators)[0].item()
    criterion = LfMmi(graph, LEAK, 0.3, 0.01, 0.4)
    assert torch.autograd.gradcheck(lambda y: criterion(y, taught)[0], one.clone().requires_grad_())
    (gradient,) = torch.autograd.grad(criterion((one, two.requires_grad_()), taught)[0], two)
    assert gradient[0].any() and not gradient[1].any()


def test_outputs_beyond_the_limit_stay_finite_and_get_no_gradient_from_the_criterion() -> None:
    graph = toy_denominator(5)
    numerators = AlignmentNumerators(graph, frames=12, leaky_hmm_coefficient=LEAK)(
        [Chunk(labels_of(possible_phones(graph, 3), [4, 4, 4]), 0)]
    )
    y = (200 * outputs(4, graph.num_pdfs, 1)).permute(2, 0, 1).float().requires_grad_()
    loss, _ = LfMmi(graph, leaky_hmm_coefficient=LEAK, l2=0.0)(y, numerators)
    (gradient,) = torch.autograd.grad(loss, y)
    assert math.isfinite(loss.item())
    assert not gradient[y.detach().abs() > 30].any()


def test_a_chunk_that_is_too_short_for_its_phones_counts_as_nothing() -> None:
    graph = toy_denominator(0)
    fits, not_fits = Chunk(labels_of([1, 2], [6, 6]), 0), Chunk(labels_of([1, 2, 1, 2, 3, 1, 2, 1], [1] * 7 + [2]), 0)
    maker = AlignmentNumerators(graph, frames=12, leaky_hmm_coefficient=LEAK)
    y = outputs(4, graph.num_pdfs, 2).permute(2, 0, 1).float().requires_grad_()
    criterion = LfMmi(graph, leaky_hmm_coefficient=LEAK, l2=0.0)
    loss, _ = criterion(y, maker([fits, not_fits]))
    alone, _ = criterion(y[:1], maker([fits]))
    assert loss.item() == pytest.approx(alone.item())
    (gradient,) = torch.autograd.grad(loss, y)
    assert gradient[0].any()
    assert not gradient[1].any()
    both = maker([fits, not_fits])
    assert both.fits_B.tolist() == [True, False] and (len(both), both.left_out) == (4, 4)


@pytest.mark.parametrize("seed", range(20))
def test_which_chunks_fit_is_known_without_the_outputs(seed: int) -> None:
    graph, generator = toy_denominator(0), np.random.default_rng(seed)
    chunks = [
        Chunk(labels_of(possible_phones(graph, 6, seed), list(generator.integers(1, 9, 6))), int(start), 1.0)
        for start in generator.integers(0, 12, 40)
    ]
    numerators = AlignmentNumerators(
        graph, frames=12, tolerance=int(generator.integers(0, 2)), leaky_hmm_coefficient=LEAK
    )(chunks)
    y = outputs(4, graph.num_pdfs, len(chunks), seed).permute(2, 0, 1).numpy()
    log_z, _ = numerator_posteriors(np.ascontiguousarray(y), numerators)
    np.testing.assert_array_equal(numerators.fits_B, np.isfinite(log_z))
    assert len(numerators) + numerators.left_out == 4 * len(chunks)


def test_a_minibatch_of_which_nothing_fits_is_an_error_that_names_the_keys() -> None:
    graph = toy_denominator(0)
    chunk, maker = Chunk(labels_of([1, 2, 1, 2, 3, 1, 2, 1], [1] * 7 + [2]), 0), AlignmentNumerators(graph, frames=12)
    with pytest.raises(Speech3Error, match=r"no chunk matches its transcript.*training\.lfmmi\.tolerance"):
        LfMmi(graph)(torch.zeros(4, 4, graph.num_pdfs), maker([chunk] * 4))
    # A single one, an epoch's last, changes nothing.
    y = torch.ones(1, 4, graph.num_pdfs, requires_grad=True)
    loss, correct = LfMmi(graph)(y, maker([chunk]))
    loss.backward()
    assert loss.item() == correct.item() == 0 and not y.grad.any()


def test_nan_in_the_outputs_is_nan_in_the_loss() -> None:
    graph = toy_denominator(0)
    y = outputs(4, graph.num_pdfs, 1).permute(2, 0, 1).float()
    y[0, 1, :] = math.nan
    loss, _ = LfMmi(graph)(y, AlignmentNumerators(graph, frames=12)([Chunk(labels_of([1, 2], [6, 6]), 0)]))
    assert math.isnan(loss.item())


def test_another_number_of_outputs_is_refused() -> None:
    graph = toy_denominator(0)
    numerators = AlignmentNumerators(graph, frames=12)([Chunk(labels_of([1, 2], [6, 6]), 0)])
    with pytest.raises(Speech3Error, match=f"{graph.num_pdfs + 1} outputs.* {graph.num_pdfs} pdfs"):
        LfMmi(graph)(torch.zeros(1, 4, graph.num_pdfs + 1), numerators)


def test_phone_lm_is_relative_frequency() -> None:
    lm = estimate_phone_lm([[1, 2, 3], [1, 2, 2], [1, 2, 3]], extra_lm_states=0)
    # After the start always 1; after (0, 1) always 2; after (1, 2) 3 twice and 2 once; then always the end.
    assert log_prob(lm, [1, 2, 3]) == pytest.approx(math.log(2 / 3))
    assert log_prob(lm, [1, 2, 2]) == pytest.approx(math.log(1 / 3))
    assert log_prob(lm, [1, 3]) == -math.inf
    assert log_prob(lm, [1, 2]) == -math.inf


def test_longer_histories_are_distinguished() -> None:
    text = [[1, 2, 3, 1], [4, 2, 3, 4]] * 3
    short, long = estimate_phone_lm(text, 0), estimate_phone_lm(text, 10)
    assert log_prob(short, [1, 2, 3, 1]) == pytest.approx(2 * math.log(1 / 2))
    assert log_prob(long, [1, 2, 3, 1]) == pytest.approx(math.log(1 / 2))
    with pytest.raises(ValueError, match="no phones"):
        estimate_phone_lm([])


def test_initial_weights_sum_to_one_and_leave_no_state_out() -> None:
    graph = toy_denominator(0)
    assert graph.initial_J.sum() == pytest.approx(1, abs=1e-6)
    assert (graph.initial_J > 0).all()
    one_after_another = estimate_phone_lm(
        [list(range(1, 151))]
    )  # its last phones come later than the frames averaged over
    graph = assemble(one_after_another, 2, np.zeros((151, 151, 2), np.int32))
    assert graph.initial_J.min() == pytest.approx(UNSEEN, rel=1e-3)
    assert graph.initial_J.sum() == pytest.approx(1, abs=1e-6)
