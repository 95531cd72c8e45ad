"""MMI and sMBR of senones against enumeration, finite differences and PyTorch's autograd."""

import math

import numpy as np
import pytest
import torch
from denominators import enumerated_paths, log_prob, toy_denominator, toy_senones

from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm, monophone_tree
from speech3.language.lexicon import SPOKEN_NOISE, UNKNOWN, Lexicon, Pronunciation
from speech3.sequence import forward_backward
from speech3.sequence.discriminative import Discriminative, path_log_weights, runs, senone_graph, silence_senones
from speech3.sequence.forward_backward import (
    compiled_passes,
    sparse_expected_accuracy as by_autograd,
    value_and_gradient,
)
from speech3.sequence.graph import estimate_phone_lm, sources

LEAK, SENONES, FRAMES, SCALE = 0.1, 4, 3, 0.5


def toy_graph(seed=0):
    return senone_graph(*toy_senones(seed, SENONES), SENONES, 3)


def outputs(batch, frames=FRAMES, seed=0, senones=SENONES):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(batch, frames, senones, generator=generator, dtype=torch.float64)


def drawn_senones(batch, frames=FRAMES, seed=0, senones=SENONES):
    return torch.randint(senones, (batch * frames,), generator=torch.Generator().manual_seed(seed + 100))


def loss_of(graph, **changes):
    prior_S = np.linspace(-2, -1, graph.num_pdfs, dtype=np.float32)
    return Discriminative(
        graph, prior_S, acoustic_scale=SCALE, leaky_hmm_coefficient=LEAK, **{"smbr": False, **changes}
    )


def weighed_paths(loss, y_TS, boost=0.0, said=(), silence=()):
    """All paths, with their weights as the criterion has them."""
    scores_TS = loss.acoustic_scale * (y_TS.numpy() - loss.log_prior_S)
    for t, senone in enumerate(said):
        scores_TS[t, sorted({senone, *silence})] -= boost
    return enumerated_paths(scores_TS, loss.graph, loss.leaky_hmm_coefficient)


def test_the_graph_has_the_probabilities_of_the_alignment():
    senones_N, offsets_U1 = np.array([0, 0, 0, 1, 1, 0, 2, 0, 1, 1, 1, 1]), np.array([0, 7, 12])
    assert runs(senones_N[:7]).tolist() == [0, 1, 0, 2]
    graph = senone_graph(senones_N, offsets_U1, 4, 0)
    # Senone 0 has 3 runs in 5 frames, senone 1 two in 6, senone 2 one in one; the start leads to 0 both times.
    state = {int(pdf): j for j, pdf in enumerate(graph.first_J) if j}
    assert sorted(state) == [0, 1, 2]
    stay = {0: 1 - 3 / 5, 1: 1 - 2 / 6, 2: 0}
    assert {pdf: graph.loops_J[j] for pdf, j in state.items()} == pytest.approx(stay)
    arcs = {
        (graph.first_J[i] if i else -1, int(graph.first_J[graph.out_dst_A[a]])): graph.out_weight_A[a]
        for i in range(graph.num_states)
        for a in range(graph.out_ptr_J1[i], graph.out_ptr_J1[i + 1])
    }
    assert arcs == pytest.approx({(-1, 0): 1, (0, 1): 3 / 5 * 2 / 3, (0, 2): 3 / 5 / 3, (1, 0): 1 / 3 / 2})
    assert (graph.loops_J[0], graph.initial_J.sum()) == (0, pytest.approx(1))


def test_histories_of_one_and_of_two_are_distinguished():
    text = [[1, 2, 3], [4, 2, 1]] * 2
    short, long = (estimate_phone_lm(text, longer, history=1) for longer in (0, 2))
    assert log_prob(short, [1, 2, 1]) == pytest.approx(math.log(1 / 2 * 1 / 2 * 1 / 2 * 1 / 2))
    assert log_prob(long, [1, 2, 1]) == -math.inf
    assert len(sources(long)) == len(long.prob_A)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("boost", [0.0, 0.7])
def test_mmi_equals_enumeration(seed, boost):
    loss = loss_of(toy_graph(seed), boost=boost)
    said_N, y_BTS = drawn_senones(1, seed=seed), outputs(1, seed=seed)
    said = tuple(said_N.tolist())
    numerator = sum(weight for weight, pdfs in weighed_paths(loss, y_BTS[0]) if pdfs == said)
    denominator = sum(weight for weight, _ in weighed_paths(loss, y_BTS[0], boost, said))
    expected = math.log(denominator) - math.log(numerator)
    found, _ = loss(y_BTS, said_N)
    assert found.item() == pytest.approx(expected / FRAMES, abs=1e-9)
    assert expected > 0 or boost


@pytest.mark.parametrize("seed", range(3))
def test_smbr_equals_enumeration(seed):
    loss = loss_of(toy_graph(seed), smbr=True)
    said_N, y_BTS = drawn_senones(1, seed=seed), outputs(1, seed=seed)
    paths = weighed_paths(loss, y_BTS[0])
    right = sum(weight * sum(map(int.__eq__, pdfs, said_N.tolist())) for weight, pdfs in paths)
    found, _ = loss(y_BTS, said_N)
    assert found.item() == pytest.approx(1 - right / sum(weight for weight, _ in paths) / FRAMES, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_silence_is_one_class_for_smbr_as_enumerated(seed):
    silence = {1, 3}
    silence_S = np.isin(np.arange(SENONES), list(silence))
    loss = loss_of(toy_graph(seed), smbr=True, silence_S=silence_S)
    said_N, y_BTS = drawn_senones(1, seed=seed), outputs(1, seed=seed)
    paths = weighed_paths(loss, y_BTS[0])

    def right(pdfs):
        return sum(a == b or {a, b} <= silence for a, b in zip(pdfs, said_N.tolist(), strict=True))

    share = sum(weight * right(pdfs) for weight, pdfs in paths) / sum(weight for weight, _ in paths) / FRAMES
    found, _ = loss(y_BTS, said_N)
    assert found.item() == pytest.approx(1 - share, abs=1e-9)


def test_which_silence_it_is_makes_no_difference_to_smbr():
    loss = loss_of(toy_graph(), smbr=True, silence_S=np.array([True, True, False, False]))
    y_BTS = outputs(1)
    one, other = (loss(y_BTS, torch.tensor(said))[0].item() for said in ([0, 2, 1], [1, 2, 0]))
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_silence_is_never_an_error_for_boosted_mmi_as_enumerated(seed):
    silence = (1, 3)
    loss = loss_of(toy_graph(seed), boost=0.7, silence_S=np.isin(np.arange(SENONES), silence))
    said_N, y_BTS = drawn_senones(1, seed=seed), outputs(1, seed=seed)
    said = tuple(said_N.tolist())
    numerator = sum(weight for weight, pdfs in weighed_paths(loss, y_BTS[0]) if pdfs == said)
    denominator = sum(weight for weight, _ in weighed_paths(loss, y_BTS[0], 0.7, said, silence))
    found, _ = loss(y_BTS, said_N)
    assert found.item() == pytest.approx((math.log(denominator) - math.log(numerator)) / FRAMES, abs=1e-9)


def test_the_senones_of_silence_and_noise_are_found_in_the_tree():
    lexicon = Lexicon((Pronunciation("ab", ("a", "b")), Pronunciation(UNKNOWN, (SPOKEN_NOISE,))))
    tree = monophone_tree(np.arange(len(lexicon.phones)))
    found_S = silence_senones(Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5)))
    phones = {lexicon.phone_ids[SPOKEN_NOISE], lexicon.silence}
    assert np.flatnonzero(found_S).tolist() == sorted(3 * (phone - 1) + state for phone in phones for state in range(3))


SILENT = np.array([True, True, False, False])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"boost": 0.7},
        {"smbr": True},
        {"smbr": True, "cross_entropy": 0.3},
        {"boost": 0.7, "silence_S": SILENT},
        {"smbr": True, "silence_S": SILENT},
    ],
)
def test_losses_have_the_gradients_of_their_values(changes):
    """By finite differences in float64; float32, as in training, gives nearly the same."""
    loss, said_N, y_BTS = loss_of(toy_graph(), **changes), drawn_senones(3, 5), outputs(3, 5)
    assert torch.autograd.gradcheck(lambda y: loss(y, said_N)[0], y_BTS.clone().requires_grad_())
    gradients = []
    for y in (y_BTS.clone(), y_BTS.float()):
        value, correct = loss(y.requires_grad_(), said_N)
        gradients.append(torch.autograd.grad(value, y)[0].double())
        assert correct == (y_BTS.argmax(2).flatten() == said_N).sum()
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("batch", [1, 5, 33])
def test_compiled_accuracy_equals_autograd_through_sparse_products(batch):
    """On graphs with loop pdfs of their own, too, and with accuracies of any size; in float32 within its rounding."""
    graph = toy_denominator(2, phones=6, pdfs=20)
    generator = torch.Generator().manual_seed(0)
    y_TSB, a_TSB = (torch.randn(12, 20, batch, generator=generator, dtype=torch.float64) for _ in range(2))
    y_TSB = (3 * y_TSB).requires_grad_()
    expected_B = by_autograd(y_TSB, a_TSB, graph, LEAK)
    (gradient,) = torch.autograd.grad(expected_B.sum(), y_TSB)
    x_TSB = (y_TSB - y_TSB.amax(1, keepdim=True)).exp().detach().numpy()
    for dtype, atol in ((np.float64, 1e-12), (np.float32, 2e-5)):
        found_B, compiled = compiled_passes(x_TSB.astype(dtype), graph, LEAK, a_TSB.numpy().astype(dtype))
        np.testing.assert_allclose(found_B, expected_B.detach().numpy(), atol=atol * 10)
        np.testing.assert_allclose(compiled, gradient.numpy(), atol=atol)


@pytest.mark.parametrize(
    "changes", [{"boost": 0.7}, {"smbr": True, "cross_entropy": 0.3}, {"smbr": True, "silence_S": SILENT}]
)
def test_devices_without_compiled_passes_get_the_same(changes, monkeypatch):
    loss, said_N, y_BTS = loss_of(toy_graph(), **changes), drawn_senones(3, 5), outputs(3, 5)
    values, gradients = [], []
    for _ in range(2):
        y = y_BTS.clone().requires_grad_()
        values.append(loss(y, said_N)[0])
        gradients.append(torch.autograd.grad(values[-1], y)[0])
        monkeypatch.setattr(forward_backward, "_compiled_pass", lambda _: False)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


def test_accuracy_of_long_chunks_stays_exact_in_float32():
    """Derivatives are kept as differences from the mean: sums over 600 frames would lose four digits."""
    graph = toy_graph(1)
    y_BTS = 3 * outputs(2, 600, seed=1)
    right_BTS = torch.nn.functional.one_hot(drawn_senones(2, 600).view(2, 600), SENONES).double()
    exact_B, exact = value_and_gradient(y_BTS, graph, LEAK, right_BTS)
    found_B, found = value_and_gradient(y_BTS.float(), graph, LEAK, right_BTS.float())
    np.testing.assert_allclose(found_B, exact_B, rtol=1e-5)
    np.testing.assert_allclose(found, exact, atol=1e-5)


def test_what_all_paths_have_right_has_no_gradient():
    graph = toy_graph()
    y_BTS = outputs(1, 6).float()
    sum_B, gradient = value_and_gradient(y_BTS, graph, LEAK, torch.ones_like(y_BTS))
    assert sum_B.item() == pytest.approx(6)
    assert gradient.abs().max() < 1e-6


def test_a_senone_that_was_never_seen_costs_but_is_no_error():
    senones_N, offsets_U1 = toy_senones(0, SENONES)
    loss = loss_of(senone_graph(senones_N, offsets_U1, SENONES + 1, 3))
    seen, unseen = (
        loss(outputs(1, 2, senones=SENONES + 1), torch.tensor([0, last]))[0].item() for last in (1, SENONES)
    )
    assert seen < unseen < math.inf
    assert np.isfinite(path_log_weights(loss.graph, np.array([[SENONES, 0]]), LEAK)).all()


def test_nan_in_the_outputs_is_nan_in_the_loss():
    y_BTS = outputs(1).float()
    y_BTS[0, 1, 2] = math.nan
    for smbr in (False, True):
        assert math.isnan(loss_of(toy_graph(), smbr=smbr)(y_BTS, drawn_senones(1))[0])
    graph = senone_graph(*toy_senones(0, SENONES), SENONES + 1, 3)
    y_BTS = outputs(1, senones=SENONES + 1).float()
    y_BTS[0, 1, SENONES] = 1e4  # so no senone of the graph is left
    for smbr in (False, True):
        assert not math.isfinite(loss_of(graph, smbr=smbr)(y_BTS, drawn_senones(1))[0])


def test_another_number_of_outputs_is_refused():
    with pytest.raises(Speech3Error, match=r"5 outputs.* 4 senones.*another tree"):
        loss_of(toy_graph())(torch.zeros(1, FRAMES, 5), drawn_senones(1))
