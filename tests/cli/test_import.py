"""From a Kaldi directory to a trained network, its words and its log likelihoods; and directories that are refused."""

import contextlib
import gzip
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import typer.testing
from kaldi_dirs import kaldi_alignment, kaldi_graph, kaldi_lang

from speech3.cli import _register, app
from speech3.decode.grammar import one_word_grammar
from speech3.decode.graph import build_graph
from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed
from speech3.hmm.model import Hmm, context_free_tree, load_hmm
from speech3.io import read_fst, write_fst
from speech3.io.ark import ArkReader, read_int_ark, read_matrix, read_scp, write_ark
from speech3.language.lexicon import Lexicon, Pronunciation

if not app.registered_commands:
    _register()

LEXICON = Lexicon(tuple(Pronunciation(word, tuple(word.lower())) for word in ("AB", "BA", "CAB", "C")))
HMM = Hmm(LEXICON, context_free_tree(np.arange(12).reshape(4, 3)), np.full(12, 0.6))
SPEAKERS, EACH, DIM = 6, 8, 5


@dataclass
class Ran:
    """The exit status and output of a verb."""

    returncode: int
    stdout: str
    stderr: str


def speech3(*arguments: str | Path, cwd: Path) -> Ran:
    """Run a verb in this process, because starting one takes seconds; only a `Speech3Error` is caught."""
    with contextlib.chdir(cwd):
        result = typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, Speech3Error):
        return Ran(1, result.stdout, f"{result.stderr}error: {result.exception}")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def refused(ran: Ran, *words: str) -> None:
    assert ran.returncode == 1
    for word in words:
        assert word in ran.stderr


@pytest.fixture(scope="module")
def kaldi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Kaldi experiment: data/, lang/, ali/, graph/; each utterance is one word between silences."""
    root = tmp_path_factory.mktemp("kaldi")
    rng = np.random.default_rng(0)
    means = rng.normal(0, 4, (HMM.num_pdfs, DIM))
    words, pdfs, feats, speaker_of = {}, {}, {}, {}
    for speaker in range(SPEAKERS):
        for number in range(EACH):
            name = f"s{speaker}-{number}"
            word = ("AB", "BA", "CAB")[rng.integers(3)]
            phones = [1, *(LEXICON.phone_ids[phone] for phone in word.lower()), 1]
            path = [(phone - 1) * 3 + state for phone in phones for state in range(3)]
            pdfs[name] = np.repeat(path, rng.integers(2, 6, len(path))).astype(np.int32)
            noise = rng.normal(0, 1, (len(pdfs[name]), DIM))
            feats[name] = (means[pdfs[name]] + noise + speaker).astype(np.float32)  # each speaker has its own mean
            words[name], speaker_of[name] = word, f"s{speaker}"
    data = root / "data"
    data.mkdir()
    write_ark(data / "feats.ark", feats.items(), data / "feats.scp", compress=True)
    stats = []
    for speaker in range(SPEAKERS):
        together = np.concatenate([feats[name] for name in feats if speaker_of[name] == f"s{speaker}"]).astype(float)
        sums = np.array([[*together.sum(0), len(together)], [*np.square(together).sum(0), 0]])
        stats.append((f"s{speaker}", sums))
    write_ark(data / "cmvn.ark", stats, data / "cmvn.scp")
    (data / "utt2spk").write_text("".join(f"{name} {speaker}\n" for name, speaker in speaker_of.items()))
    (data / "text").write_text("".join(f"{name} {word}\n" for name, word in words.items()))
    model = kaldi_alignment(root / "ali", HMM, pdfs)
    kaldi_lang(root / "lang", HMM, oov="C")
    build_graph(HMM, one_word_grammar(LEXICON), root / "ours", 0.1)
    kaldi_graph(root / "graph", root / "ours", model)
    np.savez(root / "pdfs.npz", **pdfs)
    (root / "train.yaml").write_text(
        f"frames: {root}/frames\nhmm: {root}/imported\n"
        "model: {layers: 1, width: 32, left_context: 1, right_context: 1}\n"
        "training: {max_epochs: 4, minibatch: 32, learning_rate: 0.2}\n"
    )
    return root


@pytest.fixture(scope="module")
def trained(kaldi: Path) -> Path:
    """The experiment with a network trained on it; decoded, with the output of all verbs checked."""
    steps = (
        (("import", "ali", "imported", "--lang", "lang", "--graph", "graph"), "48 utterances, "),
        (
            ("pack", "data", "frames", "--ali", "imported", "--features", "given_cmvn", "--heldout", "0.2"),
            "heldout.fra",
        ),
        (("train", "train.yaml", "--out", "dnn"), "held-out frame accuracy 9"),
        (("tune", "dnn", "data", "--jobs", "1"), "WER 0.00 %"),
        (("decode", "dnn", "data", "decoded", "--jobs", "1"), "48 utterances: decoded/hyp.txt, decoded/hyp.ctm"),
        (("forward", "dnn", "data", "forward", "--jobs", "1"), "48 utterances, 12 pdfs: forward/loglikes.scp"),
        (("align", "dnn", "data", "aligned", "--jobs", "1"), "48 utterances"),
    )
    for arguments, said in steps:
        process = speech3(*arguments, cwd=kaldi)
        assert process.returncode == 0, process.stderr
        assert said in process.stdout
    return kaldi


def test_the_alignment_is_taken_over(trained: Path) -> None:
    found, truth = read_int_ark(trained / "imported" / "ali.ark"), np.load(trained / "pdfs.npz")
    assert sorted(found) == sorted(truth)
    for name in found:
        np.testing.assert_array_equal(found[name], truth[name])
    hmm = load_hmm(trained / "imported")
    assert hmm.lexicon.phones == LEXICON.phones
    assert {pron.word for pron in hmm.lexicon.pronunciations} == {"AB", "BA", "CAB", "C", "<unk>"}
    np.testing.assert_allclose(hmm.self_loop, 0.6, atol=1e-6)
    assert [hmm.pdfs(0, phone, 0) for phone in range(1, 5)] == [HMM.pdfs(0, phone, 0) for phone in range(1, 5)]


def test_frames_are_kaldis_features_normalised_by_kaldis_statistics(trained: Path) -> None:
    parts = [open_packed(trained / "frames" / f"{name}.frames") for name in ("train", "heldout")]
    speakers = [{name.split("-")[0] for name in part.utterances} for part in parts]
    assert len(speakers[0] | speakers[1]) == SPEAKERS and not speakers[0] & speakers[1]
    feats, truth = ArkReader(trained / "data" / "feats.scp"), np.load(trained / "pdfs.npz")
    statistics = read_scp(trained / "data" / "cmvn.scp")
    for part in parts:
        for index, name in enumerate(part.utterances):
            start, stop = part.offsets_U1[index], part.offsets_U1[index + 1]
            np.testing.assert_array_equal(part.senones_N[start:stop], truth[name])
            speaker = name.split("-")[0]
            sums = read_matrix(statistics[speaker], trained / "data")
            expected = feats[name] - sums[0, :-1] / sums[0, -1]
            np.testing.assert_allclose(part.frames_NF[start:stop], expected, atol=1e-5)


def test_words_and_likelihoods(trained: Path) -> None:
    assert (trained / "decoded" / "hyp.txt").read_text() == (trained / "data" / "text").read_text()
    loglikes, truth = ArkReader(trained / "forward" / "loglikes.scp"), np.load(trained / "pdfs.npz")
    right = total = 0
    for name in loglikes:
        assert loglikes[name].shape == (len(truth[name]), 12) and np.isfinite(loglikes[name]).all()
        right += int((loglikes[name].argmax(1) == truth[name]).sum())
        total += len(truth[name])
    assert right > 0.9 * total
    aligned = read_int_ark(trained / "aligned" / "ali.ark")
    assert np.mean([np.mean(aligned[name] == truth[name]) for name in aligned]) > 0.9


def test_silence_with_more_states(trained: Path, tmp_path: Path) -> None:
    """With Kaldi's usual silence, a model can be trained and can decode, but cannot align, and a message says so."""
    ali = tmp_path / "ali"
    shutil.copytree(trained / "ali", ali)
    text = (ali / "final.mdl").read_text()
    states = text[text.index("<State> 0") : text.index("</TopologyEntry>")]
    skipping = states.replace("<Transition> 1 0.25 </State>", "<Transition> 2 0.25 </State>", 1)
    more = f"<TopologyEntry>\n<ForPhones>\n1\n</ForPhones>\n{skipping}</TopologyEntry>\n"
    text = text.replace("<ForPhones>\n1 2 3 4\n", "<ForPhones>\n2 3 4\n").replace("</Topology>", f"{more}</Topology>")
    (ali / "final.mdl").write_text(text)
    lang, graph = trained / "lang", trained / "graph"
    process = speech3("import", ali, tmp_path / "out", "--lang", lang, "--graph", graph, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "can be used to train and decode, but not to align" in process.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["ali.ark", "graph", "hmm.json"]
    dnn = tmp_path / "dnn"
    shutil.copytree(trained / "dnn", dnn)
    for name in ("hmm.json", "tree.safetensors", "lexiconp.txt"):
        (dnn / name).unlink()
    shutil.copy(tmp_path / "out" / "hmm.json", dnn)
    process = speech3("decode", dnn, trained / "data", "decoded", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "no word times (hyp.ctm): the model cannot align" in process.stderr
    assert (tmp_path / "decoded" / "hyp.txt").read_text() == (trained / "data" / "text").read_text()
    assert not (tmp_path / "decoded" / "hyp.ctm").exists()
    for verb in ("align", "export-kaldi"):
        ran = speech3(verb, dnn, *([trained / "data"] if verb == "align" else []), "no", cwd=tmp_path)
        refused(ran, "only the number of its outputs", "phone SIL has 3 states or skips some")


@pytest.fixture
def mine(kaldi: Path, tmp_path: Path) -> Path:
    """A copy of the experiment, to be damaged."""
    for name in ("data", "ali", "lang", "graph"):
        shutil.copytree(kaldi / name, tmp_path / "kaldi" / name)
    return tmp_path / "kaldi"


def test_pdf_counts_that_differ(mine: Path) -> None:
    options = ("import", "ali", "out", "--graph", "graph")
    (mine / "graph" / "num_pdfs").write_text("13\n")
    refused(speech3(*options, cwd=mine), "graph/num_pdfs: 13 pdfs, but ali/final.mdl has 12")
    (mine / "graph" / "num_pdfs").unlink()
    mdl = mine / "ali" / "final.mdl"
    whole = mdl.read_text()
    mdl.write_text(whole.replace("\n4 2 11 \n", "\n4 2 12 \n"))
    refused(speech3(*options, cwd=mine), "ali/final.mdl has 13 pdfs, ali/tree has 12: they belong to different models")
    cut = whole.replace("<Triples> 12", "<Triples> 11").replace("\n4 2 11 \n", "\n")
    numbers = cut[cut.index(" [ ") + 3 : cut.index(" ]\n")].split()
    cut = cut.replace(" ".join(numbers), " ".join(numbers[:-2]))
    mdl.write_text(cut)
    tree = mine / "ali" / "tree"
    tree.write_text(tree.read_text().replace("CE 11", "CE 10"))
    refused(speech3(*options, cwd=mine), "graph/HCLG.fst: transition-ids up to", "but ali/final.mdl has 22")
    refused(speech3(*options[:3], cwd=mine), "ali.1.gz: s", "transition-id 2", "but ali/final.mdl has 22")
    assert not list(mine.glob("out*")) and not list(mine.glob(".out*"))


def test_a_graph_with_negative_labels(mine: Path) -> None:
    path = mine / "graph" / "HCLG.fst"
    graph = read_fst(path)
    arcs_A = graph.arcs_A.copy()
    arcs_A["ilabel"][0] = -3
    write_fst(replace(graph, arcs_A=arcs_A), path)
    options = ("import", "ali", "out", "--graph", "graph")
    refused(speech3(*options, cwd=mine), "graph/HCLG.fst: transition-ids below 0")


def test_parts_that_are_missing_cut_or_doubled(mine: Path) -> None:
    part = mine / "ali" / "ali.2.gz"
    whole = part.read_bytes()
    part.unlink()
    refused(speech3("import", "ali", "out", cwd=mine), "ali: ali.2.gz is missing, one of 2")
    part.write_bytes(whole[: len(whole) // 2])
    refused(speech3("import", "ali", "out", cwd=mine), "ali/ali.2.gz: truncated or not an archive of integer vectors")
    shutil.copy(mine / "ali" / "ali.1.gz", part)
    refused(speech3("import", "ali", "out", cwd=mine), "ali/ali.2.gz: s0-0 occurs in ali a second time")
    part.write_bytes(gzip.compress(b""))
    (mine / "ali" / "ali.1.gz").write_bytes(gzip.compress(b""))
    refused(speech3("import", "ali", "out", cwd=mine), "ali: its ali.*.gz contain no utterance")
    assert not list(mine.glob("out*")) and not list(mine.glob(".out*"))
    refused(speech3("import", "nowhere", "out", cwd=mine), "nowhere: no such directory")
    refused(speech3("import", "data", "out", cwd=mine), "data/final.mdl: No such file")


def test_lang_and_graph_of_others(mine: Path) -> None:
    options = ("import", "ali", "out", "--lang", "lang")
    shutil.copy(mine / "lang" / "phones.txt", mine / "ali" / "phones.txt")
    symbols = mine / "lang" / "phones.txt"
    symbols.write_text(symbols.read_text().replace("a 2", "a 9"))
    refused(
        speech3(*options, cwd=mine), "ali/phones.txt and lang/phones.txt have different phone sets: a is 2 in the first"
    )
    (mine / "ali" / "phones.txt").unlink()
    refused(speech3(*options, cwd=mine), "lang: phone a is not in ali/final.mdl")
    (mine / "lang" / "phones" / "align_lexicon.txt").unlink()
    refused(speech3(*options, cwd=mine), "lang/phones/align_lexicon.txt: no such file")
    graph = mine / "graph" / "HCLG.fst"
    graph.write_bytes(graph.read_bytes()[:-7])
    refused(speech3("import", "ali", "out", "--graph", "graph", cwd=mine), "graph/HCLG.fst: cut short")
    graph.write_bytes(b"no fst")
    refused(speech3("import", "ali", "out", "--graph", "graph", cwd=mine), "graph/HCLG.fst: not an OpenFst file")
    assert not list(mine.glob("out*")) and not list(mine.glob(".out*"))


def test_kaldis_own_files_are_not_replaced(mine: Path) -> None:
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    refused(speech3("import", "ali", "ali", "--graph", "graph", cwd=mine), "ali: is one of the inputs")
    refused(speech3("import", "ali", "lang", cwd=mine), "lang: is not an earlier import")
    assert before == {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    for _ in range(2):  # an earlier import is
        assert speech3("import", "ali", "out", "--graph", "graph", cwd=mine).returncode == 0


def test_an_alignment_of_other_utterances(trained: Path, mine: Path) -> None:
    ali = mine / "of_others"
    shutil.copytree(trained / "imported", ali)
    options = ("pack", "data", "frames", "--ali", "of_others", "--features", "given", "--heldout", "0.2")
    vectors = read_int_ark(ali / "ali.ark")
    write_ark(ali / "ali.ark", [(f"x{name}", pdfs) for name, pdfs in vectors.items()])
    refused(speech3(*options, cwd=mine), "of_others/ali.ark: is an alignment of other utterances: data has s0-0")
    write_ark(ali / "ali.ark", list(vectors.items())[:40])
    refused(
        speech3(*options, cwd=mine), "of_others/ali.ark: 8 of 48 utterances of data are not aligned", "speech3 subs"
    )
    write_ark(ali / "ali.ark", [(name, pdfs[:-9]) for name, pdfs in vectors.items()])
    refused(speech3(*options, cwd=mine), "frames of features,", "of alignment")
    assert not list(mine.glob("frames/*"))
    write_ark(ali / "ali.ark", list(vectors.items())[:46])
    process = speech3(*options, cwd=mine)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("no alignment") == 2
    assert sorted(path.name for path in (mine / "frames").iterdir()) == [
        "features.yaml",
        "heldout.frames",
        "train.frames",
    ]
    hmm = json.loads((ali / "hmm.json").read_text())
    (ali / "hmm.json").write_text(json.dumps({**hmm, "pdfs": 7}))
    refused(speech3(*options, cwd=mine), "frames/", "but there are 7")


def test_a_compressed_ark_cut_short(mine: Path) -> None:
    scp, ark = mine / "data" / "feats.scp", mine / "data" / "feats.ark"
    scp.write_text("".join(f"{name} {value.rsplit('/', 1)[-1]}\n" for name, value in read_scp(scp).items()))
    whole = ark.read_bytes()
    ark.write_bytes(whole[:-5])
    process = speech3("extract", "data", "feats", "--features", "given", cwd=mine)
    assert process.returncode == 0 and "1 utterance skipped" in process.stdout
    assert "is truncated or not a Kaldi matrix" in (mine / "feats" / "skipped.txt").read_text()
    ark.write_bytes(whole[: len(whole) // 2])
    refused(
        speech3("extract", "data", "more", "--features", "given", cwd=mine), "data/feats.scp: feats.ark:", "is trunc"
    )
    assert not list(mine.glob("more/*"))
