"""Neural language models against literal loops in float64 and enumerations, and their messages about bad input."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from speech3.config import NeuralLmConfig
from speech3.errors import Speech3Error
from speech3.language import NeuralLm, neural, read_units
from speech3.language.kneser_ney import estimate_lm

WORDS = ("a", "b", "c")
UNITS = (*neural.SPECIAL, *WORDS)
COUNT_V = np.array([0, 4, 1, 5, 2, 3])
HELD_OUT = [["a", "b"], ["c"], ["b", "b", "a"], ["c", "a"]]
KINDS = ("lstm", "transformer")


def model(kind: str, **keys: object) -> NeuralLm:
    config = NeuralLmConfig(**{"kind": kind, "width": 8, "heads": 2, "layers": 2, "dropout": 0, **keys})  # type: ignore[arg-type]
    torch.manual_seed(3)
    network = neural.Network(config, COUNT_V)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return NeuralLm(config, UNITS, network, b"", "toy")


def literal_hidden(kind: str, p: dict[str, torch.Tensor], units: list[int], width: int, heads: int) -> torch.Tensor:
    """The outputs after each unit, one at a time, from the equations."""
    ys = []
    if kind == "lstm":
        h, c = ([torch.zeros(width, dtype=torch.float64) for _ in range(2)] for _ in range(2))
        for unit in units:
            x = p["embedding.weight"][unit]
            for n in range(2):
                gates = p[f"body.weight_ih_l{n}"] @ x + p[f"body.bias_ih_l{n}"]
                gates = gates + p[f"body.weight_hh_l{n}"] @ h[n] + p[f"body.bias_hh_l{n}"]
                i, f, g, o = gates.split(width)
                c[n] = torch.sigmoid(f) * c[n] + torch.sigmoid(i) * torch.tanh(g)
                x = h[n] = torch.sigmoid(o) * torch.tanh(c[n])
            ys.append(x)
        return torch.stack(ys)
    xs = [p["embedding.weight"][unit] * width**0.5 + p["places.weight"][t] for t, unit in enumerate(units)]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]

    size = width // heads
    for at in ("body.layers.0", "body.layers.1"):
        weight, bias = p[f"{at}.self_attn.in_proj_weight"], p[f"{at}.self_attn.in_proj_bias"]
        heads_Q = [(weight @ norm(x, f"{at}.norm1") + bias).view(3, heads, size) for x in xs]
        after = []
        for t, x in enumerate(xs):
            read = []
            for head in range(heads):
                score_S = torch.stack([heads_Q[t][0, head] @ heads_Q[s][1, head] / size**0.5 for s in range(t + 1)])
                value_SD = torch.stack([heads_Q[s][2, head] for s in range(t + 1)])
                read.append(score_S.softmax(0) @ value_SD)
            x = x + p[f"{at}.self_attn.out_proj.weight"] @ torch.cat(read) + p[f"{at}.self_attn.out_proj.bias"]
            inner = F.gelu(p[f"{at}.linear1.weight"] @ norm(x, f"{at}.norm2") + p[f"{at}.linear1.bias"])
            after.append(x + p[f"{at}.linear2.weight"] @ inner + p[f"{at}.linear2.bias"])
        xs = after
    return torch.stack([norm(x, "body.norm") for x in xs])


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_a_literal_loop(kind: str) -> None:
    network = model(kind, samples=0, word_dropout=0).network.double().train()
    sentences = [[0, 3, 4, 1], [0, 5, 5, 2, 3, 1], [0, 1]]
    inputs, labels = torch.zeros(3, 5, dtype=torch.int64), torch.full((3, 5), -1)
    for row, units in enumerate(sentences):
        inputs[row, : len(units) - 1], labels[row, : len(units) - 1] = torch.tensor(units[:-1]), torch.tensor(units[1:])
    own = dict(network.named_parameters())
    total = torch.zeros((), dtype=torch.float64)
    for units in sentences:
        for y, after in zip(literal_hidden(kind, own, units[:-1], 8, 2), units[1:], strict=True):
            scores = [own["embedding.weight"][v] @ y + own["bias"][v] for v in range(len(UNITS))]
            total = total - scores[after] + torch.stack(scores).exp().sum().log()
    expected = total / sum(len(units) - 1 for units in sentences)
    loss = network(inputs, labels)["loss"]
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)  # the loss itself is float32
    wanted = torch.autograd.grad(expected, list(own.values()), materialize_grads=True)
    for one, other in zip(torch.autograd.grad(loss, list(own.values()), materialize_grads=True), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_the_sampled_sum_has_the_whole_one_as_its_mean() -> None:
    """With one draw all cases can be enumerated; with several, the sum is the mean of the cases' sums."""
    network = model("lstm").network.double()
    y_1D, after = torch.randn(1, 8, dtype=torch.float64), torch.tensor([4])
    score_V = network.logits(y_1D)[0].detach()
    draw_V = network.log_draw_V.exp().double()
    torch.testing.assert_close(
        draw_V,
        torch.from_numpy(np.maximum(COUNT_V, 0.5) ** 0.75 / (np.maximum(COUNT_V, 0.5) ** 0.75).sum()),
        rtol=1e-6,
        atol=0,
    )

    def total(drawn: list[int]) -> float:
        loss = network.sampled_loss(y_1D, after, torch.tensor(drawn)).detach()
        return float((loss + score_V[4]).exp())

    single = [total([v]) for v in range(len(UNITS))]
    mean = sum(float(draw_V[v]) * single[v] for v in range(len(UNITS)))
    assert mean == pytest.approx(float(score_V.exp().sum()), rel=1e-5)
    assert total([0, 3, 3, 5]) == pytest.approx((single[0] + 2 * single[3] + single[5]) / 4, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_sum_to_one_and_perplexity_is_their_inverse_geometric_mean(kind: str) -> None:
    lm = model(kind)
    words = (*WORDS, "<unk>")
    ended = going_on = 0.0
    for length in range(4):  # all sentences of up to three words
        for words_of in itertools.product(words, repeat=length):
            ended += math.exp(sum(lm.log_probs([words_of])[0]))
    for words_of in itertools.product(words, repeat=4):
        going_on += math.exp(sum(lm.log_probs([words_of])[0][:-1]))
    assert ended + going_on == pytest.approx(1, abs=1e-5)
    found = neural.measure_sentences(lm, [*HELD_OUT, ["x", "a"]])
    each = [lm.log_probs([sentence])[0] for sentence in [*HELD_OUT, ["x", "a"]]]
    known = np.concatenate([*each[:-1], each[-1][1:]])
    assert (found.sentences, found.words, found.unknown) == (5, 10, 1)
    assert found.known == pytest.approx(math.exp(-known.mean()), rel=1e-6)
    assert found.all == pytest.approx(math.exp(-np.concatenate(each).mean()), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_together_and_alone_have_the_same_probabilities(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model(kind, longest=4)
    together = [["a", "b", "c"], ["a", "b"], [], ["a", "b", "c", "a", "c", "b", "a"], ["a", "b", "a"]]
    scores = lm.sentence_scores(together)
    monkeypatch.setattr(neural, "_AT_ONCE", 1)
    monkeypatch.setattr(neural, "_ROWS", 2)
    assert scores == pytest.approx([lm.sentence_scores([words])[0] for words in together], rel=1e-5)
    # The long sentence is scored in parts of four, each after the last word before it.
    network, unit = lm.network, [lm.numbers[word] for word in together[3]]
    network.eval()
    expected = 0.0
    for seen, wanted in (([0, *unit[:3]], unit[:4]), ([unit[3], *unit[4:]], [*unit[4:], 1])):
        score_TV = network.logits(network.hidden(torch.tensor([seen])))[0]
        score_TV[:, 0] = -math.inf
        expected += float(score_TV.log_softmax(1)[range(len(wanted)), wanted].sum().detach())
    assert scores[3] == pytest.approx(expected, rel=1e-5)


def test_a_mixture_adds_probabilities_and_its_weight_is_the_best(tmp_path: Path) -> None:
    ngrams = estimate_lm([["a", "b"], ["c", "a"], ["a", "d"]] * 3, 2)
    lm = model("lstm")
    (tmp_path / "held").write_text("".join(" ".join(words) + "\n" for words in [*HELD_OUT, ["d", "x"]]))
    mixture = neural.mixed(lm, ngrams, None, tmp_path / "held")
    sentence = ["a", "d", "b"]
    neural_W = np.exp(lm.log_probs([sentence])[0])
    ngram_W = [10 ** ngrams.log10_prob(["<s>", *sentence[:t]], word) for t, word in enumerate([*sentence, "</s>"])]
    neural_W[1] = 0  # a word that only the n-grams have
    expected = mixture.share * neural_W + (1 - mixture.share) * np.array(ngram_W)
    assert np.exp(mixture.log_probs([sentence])[0]) == pytest.approx(expected, rel=1e-5)
    sentences = neural.read_known(mixture, [tmp_path / "held"])
    values = {
        share: neural.measure_sentences(replace(mixture, share=share), sentences).known
        for share in (mixture.share, *np.linspace(0.1, 0.9, 9).tolist())
    }
    assert min(values.values()) == pytest.approx(values[mixture.share], rel=1e-5) and 0.05 < mixture.share < 0.95
    mixture.save(tmp_path / "mixed")
    again = neural.read_neural(tmp_path / "mixed")
    assert again.sentence_scores([sentence]) == pytest.approx(mixture.sentence_scores([sentence]), rel=1e-5)
    with pytest.raises(Speech3Error, match="no word in common"):
        neural.mixed(lm, estimate_lm([["A", "B"]], 1), 0.5)


def test_text_in_words_and_pieces(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two\n\ntwo three one\n" * 5)
    (tmp_path / "words").write_text("one\ntwo\n")
    text = read_units([tmp_path / "text"], vocabulary=tmp_path / "words")
    assert [text.units[unit] for unit in text.unit_T[:9]] == [
        "<s>",
        "one",
        "two",
        "</s>",
        "<s>",
        "two",
        "<unk>",
        "one",
        "</s>",
    ]
    assert (text.words, text.unknown, text.count_V[0], text.count_V[1]) == (25, 5, 0, 10)
    text = read_units([tmp_path / "text"], pieces=12)
    said = "".join(text.units[unit] for unit in text.unit_T[: 2 + text.unit_T.tolist().index(1)])
    assert said == "<s>▁one▁two</s><s>"
    config = NeuralLmConfig(width=4, pieces=12)
    lm = NeuralLm(config, text.units, neural.Network(config, text.count_V), text.pieces, "toy")
    assert [lm.units[unit] for unit in lm.units_of("two")] == list(lm.cutter("two") if lm.cutter else [])
    assert lm.knows("tone") and not lm.knows("zzz")
    in_units = NeuralLm(config.model_copy(update={"pieces": 0}), lm.units, lm.network, b"", "toy")
    pieces = [piece for word in ("one", "two") for piece in lm.cutter(word)]  # type: ignore[misc]
    assert lm.sentence_scores([["one", "two"]]) == pytest.approx(in_units.sentence_scores([pieces]))
    assert len(lm.log_probs([["one", "two"]])[0]) == 3


def test_nearest_neighbours_are_those_by_cosine() -> None:
    lm = model("lstm")
    vectors = lm.network.embedding.weight.detach().double().numpy()[3:]
    cosines = vectors @ vectors[1] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[1])
    expected = sorted(((word, float(cosines[n])) for n, word in enumerate(WORDS) if n != 1), key=lambda x: -x[1])
    found = lm.neighbours("b")
    assert [word for word, _ in found] == [word for word, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-6)
    for word in ("<unk>", "z"):
        with pytest.raises(Speech3Error, match=f"toy: {word} is not among its words"):
            lm.neighbours(word)


def test_bad_texts_and_files_are_named(tmp_path: Path) -> None:
    for name, text in (("empty", "\n\n"), ("others", "X Y\n"), ("words", "a\nb\n")):
        (tmp_path / name).write_text(text)
    lm = model("lstm")
    with pytest.raises(Speech3Error, match=r"empty: no sentences"):
        read_units([tmp_path / "empty"])
    with pytest.raises(Speech3Error, match=r"empty: no sentences"):
        neural.read_known(lm, [tmp_path / "empty"])
    with pytest.raises(Speech3Error, match=r"words: none of the words of .*others is among its 2 \(a, b"):
        read_units([tmp_path / "others"], vocabulary=tmp_path / "words")
    with pytest.raises(Speech3Error, match=r"others: none of its words is among the 3 of toy \(a, b, c"):
        neural.read_known(lm, [tmp_path / "others"])
    with pytest.raises(Speech3Error, match=r"words: a vocabulary is for words, but lm\.pieces=9"):
        read_units([tmp_path / "others"], 9, tmp_path / "words")
    with pytest.raises(Speech3Error, match=r"has no neural\.safetensors"):
        neural.read_neural(tmp_path)
    lm.save(tmp_path / "lm")
    (tmp_path / "lm" / neural.FILE).write_bytes(b"nothing")
    with pytest.raises(Speech3Error, match="not a safetensors file"):
        neural.read_neural(tmp_path / "lm")
