"""From `decode --lattice` to `rescore`, on the language of `whistles`: files, errors, and costs of all paths."""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import jiwer
import numpy as np
import pytest
import torch
import toys
from toys import arpa_cost
from whistles import HMM, SAID

from speech3.cli import (
    measure as score_verb,
    recognise as decode_verb,
    recognise as rescore_verb,
    recognise as transcribe_verb,
)
from speech3.config import NeuralLmConfig
from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.decode.graph import build_graph
from speech3.decode.lattice_directory import open_lattices
from speech3.decode.lattice_paths import nbest
from speech3.decode.rescoring import WEIGHTS, RescoreOptions, load_function, rescore
from speech3.errors import DataError, MismatchError, MissingError, Speech3Error
from speech3.hmm.alignment.times import read_ctm
from speech3.language.arpa import ArpaLm, write_arpa
from speech3.language.neural import Network, NeuralLm, mixed
from speech3.runtime.files import read_json, write_json

TEXT = {name: " ".join(words) for name, (words, _) in SAID.items()}
OLD = [["A"], ["AB"], ["BB"], ["A", "BB"]]  # what conftest's graph was made of
NEW = [["AB", "BB"], ["BB", "AB", "A"], ["A", "A", "BB"], ["BB"], ["AB"]]


@pytest.fixture
def data(tmp_path: Path, sounds: dict[str, Path]) -> Path:
    rows = {name: Utterance(name, name, name, TEXT[name]) for name in sounds}
    write_datadir(
        DataDir(tmp_path / "data", {name: str(path) for name, path in sounds.items()}, rows), tmp_path / "data"
    )
    return tmp_path / "data"


@pytest.fixture
def decoded(model: Path, data: Path, tmp_path: Path) -> Path:
    """A decoding with a small acoustic scale and cheap words, so that lattices have most words in most places."""
    settings = read_json(model / "decode.json") | {"acoustic_scale": 0.02, "word_penalty": -2.0}
    write_json(model / "decode.json", settings)
    decode_verb.decode(model, data, tmp_path / "decoded", nbest=50, lattice=True, jobs=1)
    return tmp_path / "decoded"


def lm_of(path: Path, lm: ArpaLm) -> str:
    write_arpa(lm, path)
    return str(path)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_n_best_and_the_lattices_agree(decoded: Path) -> None:
    rows = lines_of(decoded / "nbest.jsonl")
    directory = open_lattices(decoded)
    assert directory.about.word_penalty == -2.0 and not directory.about.rescored
    hypotheses = dict(line.split(maxsplit=1) for line in (decoded / "hyp.txt").read_text().splitlines())
    index = dict(line.split() for line in (decoded / "lat.scp").read_text().splitlines())
    for utterance, lattice in directory.lattices():
        mine = [row for row in rows if row["utterance"] == utterance]
        paths = nbest(lattice, 50, directory.about.acoustic_scale)
        assert len(mine) == len(paths) > 5 and [row["rank"] for row in mine] == list(range(1, len(mine) + 1))
        assert [row["words"].split() for row in mine] == [list(directory.spelled(path.words)) for path in paths]
        assert [row["cost"] for row in mine] == pytest.approx([path.cost for path in paths], abs=2e-3)
        assert all(row["cost"] == pytest.approx(row["acoustic_cost"] + row["graph_cost"], abs=2e-4) for row in mine)
        assert mine[0]["words"] == hypotheses[utterance]
        ark, _, offset = index[utterance].rpartition(":")
        assert Path(ark).read_bytes()[: int(offset)].endswith(utterance.encode() + b" ")


def test_the_fewest_expected_errors(model: Path, data: Path, decoded: Path, tmp_path: Path) -> None:
    decode_verb.decode(model, data, tmp_path / "mbr", mbr=True, jobs=1)
    assert not (tmp_path / "mbr" / "lat.ark").exists() and not (tmp_path / "mbr" / "nbest.jsonl").exists()
    decode_verb.decode(model, data, decoded, jobs=1)
    assert not [name for name in ("lat.ark", "lattice.json", "nbest.jsonl") if (decoded / name).exists()], "stale"
    tracks = read_ctm(tmp_path / "mbr" / "hyp.ctm")
    for line in (tmp_path / "mbr" / "hyp.txt").read_text().splitlines():
        utterance, *words = line.split()
        assert [word.label for word in tracks[utterance]] == words
        assert all(0 <= (word.confidence or -1) <= 1 for word in tracks[utterance])


def test_the_same_model_changes_nothing_another_one_what_it_says(decoded: Path, tmp_path: Path) -> None:
    rescore(
        open_lattices(decoded),
        lm_of(tmp_path / "o.arpa", toys.estimate_lm(OLD, 2)),
        tmp_path / "same",
        RescoreOptions(),
    )
    before, same = (dict(open_lattices(path).lattices()) for path in (decoded, tmp_path / "same"))
    new, scale = toys.estimate_lm(NEW, 3), open_lattices(decoded).about.acoustic_scale
    for weight in (0.4, 1.0):
        out = tmp_path / f"other{weight}"
        rescore(open_lattices(decoded), lm_of(tmp_path / "n.arpa.gz", new), out, RescoreOptions(weight, nbest=9))
        directory = open_lattices(out)
        assert directory.about.rescored == {"lm": str(tmp_path / "n.arpa.gz"), "weight": weight}
        hypotheses = dict(line.split(maxsplit=1) for line in (out / "hyp.txt").read_text().splitlines())
        for utterance, lattice in before.items():
            paths = nbest(lattice, 10**4, scale)
            costs = {directory.spelled(path.words): path.cost for path in paths}
            kept = {directory.spelled(path.words): path.cost for path in nbest(same[utterance], 10**4, scale)}
            assert kept == pytest.approx(costs, abs=1e-3)
            expected = {
                words: cost + weight * (arpa_cost(new, words) - arpa_cost(toys.estimate_lm(OLD, 2), words))
                for words, cost in costs.items()
            }
            best = sorted(expected, key=lambda words: expected[words])
            assert hypotheses[utterance].split() == list(best[0])
            rows = [row for row in lines_of(out / "nbest.jsonl") if row["utterance"] == utterance]
            assert [row["cost"] for row in rows] == pytest.approx([expected[words] for words in best[:9]], abs=2e-3)
    with pytest.raises(Speech3Error, match="already rescored"):
        rescore(open_lattices(out), str(tmp_path / "n.arpa.gz"), tmp_path / "again", RescoreOptions())
    with pytest.raises(Speech3Error, match="is one of the inputs"):
        rescore(open_lattices(decoded), str(tmp_path / "n.arpa.gz"), decoded, RescoreOptions())


def test_the_weight_of_the_fewest_errors_is_taken(
    decoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = lm_of(tmp_path / "n.arpa", toys.estimate_lm([["A"] * 12] * 5 + [["BB", "AB"]], 3))
    rescore(open_lattices(decoded), lm, tmp_path / "each", RescoreOptions(0.6))
    shutil.copyfile(tmp_path / "each" / "hyp.txt", tmp_path / "text")  # used as the references here
    truth = dict(line.split(maxsplit=1) for line in (tmp_path / "text").read_text().splitlines())
    rescore_verb.rescore(decoded, lm, tmp_path / "out", tune=tmp_path / "text", ctm=True, jobs=1)
    found = read_json(tmp_path / "out" / "rescore.json")
    rates = []
    for weight in WEIGHTS:
        rescore(open_lattices(decoded), lm, tmp_path / "each", RescoreOptions(weight))
        said = dict(line.split(maxsplit=1) for line in (tmp_path / "each" / "hyp.txt").read_text().splitlines())
        rates.append(jiwer.wer([truth[name] for name in said], list(said.values())))
    assert list(found["error_rates"].values()) == pytest.approx(rates) and len(set(rates)) > 2
    assert rates[6] == 0 and rates[WEIGHTS.index(found["weight"])] == min(rates)
    assert f"weight {found['weight']:g}: WER {100 * min(rates):.2f} %" in capsys.readouterr().out
    assert set(read_ctm(tmp_path / "out" / "hyp.ctm")) == set(SAID)


def test_a_function_on_the_n_best(decoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, asked = toys.estimate_lm(NEW, 2), []
    (tmp_path / "some_lm.py").write_text("def log_probs(sentences):\n    return scorer(sentences)\n")
    monkeypatch.chdir(tmp_path)
    load_function("some_lm:log_probs").__globals__["scorer"] = lambda sentences: (
        asked.append(sentences) or [-arpa_cost(new, words) for words in sentences]
    )
    rescore_verb.rescore(decoded, "some_lm:log_probs", tmp_path / "function", weight=0.7, nbest=10**4)
    rescore(open_lattices(decoded), lm_of(tmp_path / "n.arpa", new), tmp_path / "arpa", RescoreOptions(0.7))
    assert (tmp_path / "function" / "hyp.txt").read_text() == (tmp_path / "arpa" / "hyp.txt").read_text()
    assert len(asked) == len(SAID) and all(isinstance(words, tuple) for words in asked[0])
    assert not (tmp_path / "function" / "lat.ark").exists()
    sys.modules.pop("some_lm")


def test_a_neural_model_and_its_mixture_score_every_path(decoded: Path, tmp_path: Path) -> None:
    config = NeuralLmConfig(width=5)
    torch.manual_seed(1)
    lm = NeuralLm(config, ("<s>", "</s>", "<unk>", "A", "AB", "BB"), Network(config, np.arange(6)), b"", "random")
    lm.network.bias.data += 2 * torch.randn(6)
    new, old = toys.estimate_lm(NEW, 2), toys.estimate_lm(OLD, 2)
    mixture, known = mixed(lm, new, 0.4), dict[tuple[int, ...], torch.Tensor]()

    def prob(history: list[int], word: str, share: float) -> float:
        if (key := tuple(history)) not in known:
            score_V = lm.network.eval().logits(lm.network.hidden(torch.tensor([history])))[0, -1].detach()
            known[key] = score_V[1:].softmax(0)  # without <s>
        before = ["<s>", *(lm.units[unit] for unit in history[1:])]
        return share * float(known[key][lm.numbers[word] - 1]) + (1 - share) * 10 ** new.log10_prob(before, word)

    scale = open_lattices(decoded).about.acoustic_scale
    paths = {key: nbest(lattice, 10**4, scale) for key, lattice in open_lattices(decoded).lattices()}
    for model, share, weight in ((lm, 1.0, 1.0), (mixture, 0.4, 0.6)):
        model.save(tmp_path / "lm")
        rescore(open_lattices(decoded), str(tmp_path / "lm"), tmp_path / "out", RescoreOptions(weight, nbest=10**4))
        for utterance, found in paths.items():
            expected = {}
            for path in found:
                words = open_lattices(decoded).spelled(path.words)
                cost, history = 0.0, [0]
                for word in (*words, "</s>"):
                    cost, history = cost - math.log(prob(history, word, share)), [*history, lm.numbers[word]]
                expected[words] = path.cost + weight * (cost - arpa_cost(old, words))
            rows = [row for row in lines_of(tmp_path / "out" / "nbest.jsonl") if row["utterance"] == utterance]
            assert {tuple(row["words"].split()): row["cost"] for row in rows} == pytest.approx(expected, abs=2e-3)
            assert [row["cost"] for row in rows] == sorted(row["cost"] for row in rows)


def test_a_neural_model_of_other_words_is_named(
    decoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = NeuralLmConfig(width=4)
    units = ("<s>", "</s>", "<unk>", "a", "ab", "bb")
    NeuralLm(config, units, Network(config, np.ones(6)), b"", "").save(tmp_path / "lower")
    with pytest.raises(MismatchError, match=r"lower: lacks 3 of the 3 words of .*words\.txt"):
        rescore(open_lattices(decoded), str(tmp_path / "lower"), tmp_path / "out", RescoreOptions())
    NeuralLm(config, (*units[:3], "A", "AB"), Network(config, np.ones(5)), b"", "").save(tmp_path / "two")
    rescore(open_lattices(decoded), str(tmp_path / "two"), tmp_path / "out", RescoreOptions())
    assert "two: lacks 1 word of the graph, such as BB; they are <unk>" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('no GPU')", "failed at .*: RuntimeError: no GPU"),
        ("return [0.0]", r"returned 1 values for the \d+ sentences of .*return one for each"),
        ("return [float('nan')] * len(s)", "returned the log probability nan at .*for `"),
        ("return [float('inf')] * len(s)", "returned the log probability inf"),
        ("return [float('-inf')] * len(s)", "returned the log probability -inf"),
        ("return ['a'] * len(s)", "failed at .*could not convert"),
        ("return None", "returned 1 values|returned"),
    ],
)
def test_a_function_that_fails_is_named(
    body: str, message: str, decoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_lm.py").write_text(f"def f(s):\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    before = (decoded / "lat.ark").read_bytes()
    with pytest.raises(Speech3Error, match=f"odd_lm:f: (?:{message})"):
        rescore(open_lattices(decoded), "odd_lm:f", tmp_path / "out", RescoreOptions(nbest=5))
    assert not (tmp_path / "out" / "hyp.txt").exists() and (decoded / "lat.ark").read_bytes() == before
    sys.modules.pop("odd_lm")
    for name, why in (("odd_lm:g", "has no function g"), ("no_such_module_x:f", "cannot be imported")):
        with pytest.raises(Speech3Error, match=why):
            rescore(open_lattices(decoded), name, tmp_path / "out", RescoreOptions(nbest=5))
    sys.modules.pop("odd_lm")


def test_one_sentence_may_be_impossible(decoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = dict(line.split(maxsplit=1) for line in (decoded / "hyp.txt").read_text().splitlines())
    (tmp_path / "not_that.py").write_text(
        f"def f(s):\n    return [-float('inf') if ' '.join(w) in {list(best.values())} else 0.0 for w in s]\n"
    )
    monkeypatch.chdir(tmp_path)
    for weight, same in ((0.0, True), (0.1, False)):
        rescore(open_lattices(decoded), "not_that:f", tmp_path / "out", RescoreOptions(weight, nbest=20))
        assert (
            dict(line.split(maxsplit=1) for line in (tmp_path / "out" / "hyp.txt").read_text().splitlines()) == best
        ) == same
    assert "Infinity" not in (tmp_path / "out" / "nbest.jsonl").read_text()
    assert all(row["cost"] is None for row in lines_of(tmp_path / "out" / "nbest.jsonl") if row["rank"] == 20)
    sys.modules.pop("not_that")


def test_words_that_the_model_lacks(decoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = lm_of(tmp_path / "l.arpa", toys.estimate_lm([["A"], ["AB", "A"]], 2))
    with pytest.raises(MissingError, match=r"l\.arpa"):
        rescore(open_lattices(decoded), lacking, tmp_path / "out", RescoreOptions())
    lm = toys.estimate_lm([["A"], ["AB", "A"], ["<unk>", "A"]], 2)
    rescore(open_lattices(decoded), lm_of(tmp_path / "u.arpa", lm), tmp_path / "out", RescoreOptions(nbest=10**4))
    assert "u.arpa: lacks 1 word of the graph, such as BB; they are scored as <unk>" in capsys.readouterr().err
    old = toys.estimate_lm(OLD, 2)
    before = {(row["utterance"], row["words"]): row["cost"] for row in lines_of(decoded / "nbest.jsonl")}
    compared = 0
    for row in lines_of(tmp_path / "out" / "nbest.jsonl"):
        words = tuple(row["words"].split())
        if (row["utterance"], row["words"]) in before:
            unknown = tuple("<unk>" if word == "BB" else word for word in words)
            expected = before[row["utterance"], row["words"]] + arpa_cost(lm, unknown) - arpa_cost(old, words)
            assert row["cost"] == pytest.approx(expected, abs=2e-3)
            compared += "BB" in words
    assert compared > 3


def test_lattices_of_another_graph_are_refused(decoded: Path, model: Path, tmp_path: Path) -> None:
    lm = lm_of(tmp_path / "n.arpa", toys.estimate_lm(NEW, 3))
    words = (decoded / "words.txt").read_text()
    (decoded / "words.txt").write_text("\n".join(words.splitlines()[:2]) + "\n")
    with pytest.raises(Speech3Error, match=r"not made with the graph|words\.txt beside it has"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    with pytest.raises(Speech3Error, match=r"lat\.ark: .*: word \d, but the words\.txt beside it has 2"):
        list(open_lattices(decoded).lattices())
    (decoded / "words.txt").write_text(words.replace("AB", "AX"))
    with pytest.raises(Speech3Error, match="not made with the graph that is in"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    (decoded / "words.txt").write_text(words)
    build_graph(HMM, toys.estimate_lm(NEW, 1), model / "graph", toys.SCALE)
    with pytest.raises(Speech3Error, match="not made with the graph that is in"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    assert not (tmp_path / "out" / "hyp.txt").exists()


def test_a_graph_that_does_not_keep_its_model(decoded: Path, model: Path, tmp_path: Path) -> None:
    lm = lm_of(tmp_path / "n.arpa", toys.estimate_lm(NEW, 3))
    rescore(open_lattices(decoded), lm, tmp_path / "kept", RescoreOptions())
    old = Path(lm_of(tmp_path / "o.arpa", toys.estimate_lm(OLD, 2)))
    with pytest.raises(Speech3Error, match=r"--old .*o\.arpa: .*graph keeps the language model"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions(old=old))
    (model / "graph" / "G.fst").unlink()
    for name in ("lm.arpa.gz",):
        (model / "graph" / name).unlink(missing_ok=True)
    with pytest.raises(Speech3Error, match=r"is not in .*graph/G\.fst; pass its ARPA file with --old"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    rescore(open_lattices(decoded), lm, tmp_path / "given", RescoreOptions(old=old))
    assert (tmp_path / "given" / "hyp.txt").read_text() == (tmp_path / "kept" / "hyp.txt").read_text()
    other = Path(lm_of(tmp_path / "p.arpa", toys.estimate_lm([["A"], ["AB", "A"]], 2)))
    with pytest.raises(DataError, match="a word that the language model used in the search"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions(old=other))


def test_directories_that_are_none_and_damaged_archives(decoded: Path, tmp_path: Path) -> None:
    lm = lm_of(tmp_path / "n.arpa", toys.estimate_lm(NEW, 3))
    with pytest.raises(MissingError, match=r"has no lattice\.json"):
        open_lattices(tmp_path)
    content = (decoded / "lat.ark").read_bytes()
    (decoded / "lat.ark").write_bytes(content[:-7])
    with pytest.raises(Speech3Error, match=r"lat\.ark: .*cut short"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    assert not (tmp_path / "out" / "lat.ark").exists() and not (tmp_path / "out" / "hyp.txt").exists()
    (decoded / "lat.ark").write_bytes(b"")
    with pytest.raises(Speech3Error, match="holds no lattice"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    (decoded / "lat.ark").unlink()
    with pytest.raises(Speech3Error, match=r"lat\.ark: no such file"):
        rescore(open_lattices(decoded), lm, tmp_path / "out", RescoreOptions())
    write_json(decoded / "lattice.json", {"model": "x"})
    with pytest.raises(Speech3Error, match="of another version"):
        open_lattices(decoded)


def test_the_oracle_is_scored(decoded: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    score_verb.score(data / "text", decoded / "lat.ark", as_json=True)
    oracle = json.loads(capsys.readouterr().out)
    directory = open_lattices(decoded)
    fewest = 0
    for utterance, lattice in directory.lattices():
        said = (" ".join(directory.spelled(path.words)) for path in nbest(lattice, 10**4, 1.0))
        fewest += min(round(jiwer.wer(TEXT[utterance], words) * len(TEXT[utterance].split())) for words in said)
    assert oracle["wer"] == pytest.approx(fewest / oracle["words"])
    score_verb.score(data / "text", decoded / "lat.ark", against=decoded / "lat.ark", as_json=True)
    assert json.loads(capsys.readouterr().out)["against"]["wer"] == oracle["wer"]
    score_verb.score(data / "text", decoded / "hyp.txt", against=decoded / "lat.ark", as_json=True)
    assert json.loads(capsys.readouterr().out)["against"]["wer"] == oracle["wer"]
    with pytest.raises(Speech3Error, match=r"--format plain: lattices have utterance ids"):
        score_verb.score(data / "text", decoded / "lat.ark", text_format=score_verb.Format.plain)
    with pytest.raises(Speech3Error, match=r"--normalize: cannot be used with lattices; normalise REF"):
        score_verb.score(data / "text", decoded / "lat.ark", normalize="lower")
    score_verb.score(data / "text", decoded / "hyp.txt")
    assert "NCE" in capsys.readouterr().out


def test_recordings_as_json(model: Path, sounds: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    transcribe_verb.transcribe(model, list(sounds.values()), as_json=True)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    transcribe_verb.transcribe(model, list(sounds.values()), ctm=True)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert list(first) == ["file", "duration", "text", "words"] and first["duration"] == 1.0
    assert [found["text"] for found in (first, second)] == list(TEXT.values())
    words = [(found["file"], word) for found in (first, second) for word in found["words"]]
    assert len(words) == len(rows) == 3
    for (name, word), row in zip(words, rows, strict=True):
        assert [name, word["word"]] == [row[0], row[4]] and list(word) == ["word", "start", "end", "confidence"]
        times = [word["start"], word["end"] - word["start"], word["confidence"]]
        assert times == pytest.approx([float(row[2]), float(row[3]), float(row[5])], abs=2e-3)


def test_confidences_are_calibrated(model: Path, sounds: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def confidences() -> list[float]:
        capsys.readouterr()
        transcribe_verb.transcribe(model, [sounds["a-bb"]], as_json=True)
        return [word["confidence"] for word in json.loads(capsys.readouterr().out)["words"]]

    raw, settings = confidences(), read_json(model / "decode.json")
    write_json(model / "decode.json", settings | {"confidence": {"offset": -1.0, "slope": 0.5}})
    odds = [math.log(min(max(p, 1e-3), 1 - 1e-3) / (1 - min(max(p, 1e-3), 1 - 1e-3))) for p in raw]
    assert confidences() == pytest.approx([1 / (1 + math.exp(1.0 - 0.5 * odd)) for odd in odds], abs=1e-3)


def test_a_copy_of_the_directory_still_serves(decoded: Path, tmp_path: Path) -> None:
    lm = lm_of(tmp_path / "n.arpa", toys.estimate_lm(NEW, 3))
    shutil.copytree(decoded, tmp_path / "copy")
    outcome = rescore(open_lattices(tmp_path / "copy"), lm, tmp_path / "out", RescoreOptions())
    assert {each.utterance for each in outcome.decoding.hypotheses} == set(SAID)
    assert dataclasses.asdict(open_lattices(tmp_path / "out").about)["model"].endswith("model")
