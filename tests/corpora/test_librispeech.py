"""LibriSpeech: its layout, which parts are used, and what is refused."""

import gzip
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora.librispeech import PARTS, prepare
from speech3.data.datadir import read_datadir
from speech3.errors import DataError, MissingError, SettingError, Speech3Error
from speech3.recipe.costs import hours_of_speech
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.steps import make_plan
from speech3.runtime.files import read_json

SHARED = Path(__file__).parents[2].parent / "shared" / "corpora" / "minilibri"
Run = Callable[..., subprocess.CompletedProcess[str]]
SMALL = (  # triphones only
    "jobs=1", "lfmmi=null", "min_minutes=60", "hmm.lda=null", "hmm.sat=null",
    "hmm.mono.iterations=12", "hmm.mono.phone_iterations=4",
    "hmm.aligner.iterations=2", "hmm.aligner.phone_iterations=2", "hmm.tri.iterations=10",
    "decode.acoustic_scales=[0.1]", "decode.word_penalties=[0]", "decode.max_active=1000",
)  # fmt: skip
LEXICON = "A AH0\nMAN M AE1 N\nSAID S EH1 D\nHELLO HH AH0 L OW1\n"
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-0.6\t<s>\n-0.6\t</s>\n-0.6\tHELLO\n-0.6\tMAN\n\n\\end\\\n"


def part(root: Path, name: str, speakers: int, first: int = 0) -> None:
    for speaker in range(100 + first, 100 + first + speakers):
        chapter = root / name / str(speaker) / "7"
        chapter.mkdir(parents=True)
        keys = [f"{speaker}-7-{number:04d}" for number in range(3)]
        for key in keys:
            soundfile.write(chapter / f"{key}.flac", np.random.default_rng(1).normal(0, 0.1, 800), 16000)
        texts = ("A MAN SAID", "HELLO", "A  MAN")
        lines = (f"{key} {text}\n" for key, text in zip(keys, texts, strict=True))
        (chapter / f"{speaker}-7.trans.txt").write_text("".join(lines))


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """Mini LibriSpeech as it is unpacked."""
    root = tmp_path / "corpus" / "LibriSpeech"
    part(root, "train-clean-5", 12)
    part(root, "dev-clean-2", 2, first=50)
    (root / "SPEAKERS.TXT").write_text("; a comment\n100  | F | train-clean-5 | 8.0 | Some Body\n101 | M | x | 1 | B\n")
    (tmp_path / "corpus" / "librispeech-lexicon.txt").write_text(LEXICON)
    return root


def test_mini_librispeech(mini: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source, out in ((mini, "a"), (mini.parent, "b")):
        prepare(source, tmp_path / out, 1)
    train, dev, test = (read_datadir(tmp_path / "a" / name) for name in ("train", "dev", "test"))
    assert sorted(test.speakers()) == ["150", "151"] and len(dev.speakers()) == 1 and len(train.speakers()) == 11
    assert not set(dev.speakers()) & set(train.speakers())
    assert [u.text for u in test.utterances.values()] == 2 * ["A MAN SAID", "HELLO", "A MAN"]
    assert test.recordings["150-7-0001"] == str(mini / "dev-clean-2" / "150" / "7" / "150-7-0001.flac")
    both = {**train.utterances, **dev.utterances}
    assert (both["100-7-0000"].gender, both["101-7-0000"].gender, both["102-7-0000"].gender) == ("f", "m", None)
    assert read_json(tmp_path / "a" / "sets.json") == {"train": "train-clean-5", "test": "dev-clean-2"}
    said = capsys.readouterr().err
    assert "train: train-clean-5; dev: a tenth of train; test: dev-clean-2" in said
    assert "dev-clean-2 has 6 of its 1,089 utterances" in said
    assert {line.split()[0] for line in (tmp_path / "a" / "lexicon.txt").read_text().splitlines()} >= {"MAN", "HELLO"}
    assert not (tmp_path / "a" / "lm.arpa.gz").exists()
    assert (tmp_path / "a" / "train" / "text").read_text() == (tmp_path / "b" / "train" / "text").read_text()


def speakers_of(out: Path) -> dict[str, list[str]]:
    return {name: sorted(read_datadir(out / name).speakers()) for name in ("train", "dev", "test")}


def test_the_parts_of_the_whole_corpus(mini: Path, tmp_path: Path) -> None:
    part(mini, "train-clean-100", 2, first=70)
    part(mini, "dev-clean", 1, first=80)
    part(mini, "test-clean", 1, first=90)
    (mini / "3-gram.arpa.gz").write_bytes(b"not read, for a smaller one is here")
    (mini.parent / "3-gram.pruned.3e-7.arpa.gz").write_bytes(gzip.compress(ARPA.encode()))
    prepare(mini, tmp_path / "out", 1)
    # train-clean-5 lies in train-clean-100
    assert speakers_of(tmp_path / "out") == {"train": ["170", "171"], "dev": ["180"], "test": ["190"]}
    assert (tmp_path / "out" / "lm.arpa.gz").exists()
    prepare(mini, tmp_path / "other", 1, train=["train-clean-5"], dev="dev-clean-2", test="test-clean")
    parts = speakers_of(tmp_path / "other")
    assert len(parts.pop("train")) == 12 and parts == {"dev": ["150", "151"], "test": ["190"]}


def test_dev_shares_nothing_with_test(mini: Path, tmp_path: Path) -> None:
    part(mini, "dev-clean", 4, first=50)  # has the speakers of dev-clean-2
    prepare(mini, tmp_path / "drawn", 1)
    found = speakers_of(tmp_path / "drawn")
    assert found["test"] == ["150", "151"] and len(found["dev"]) == 1 and found["dev"] < ["112"]
    part(mini, "dev-other", 1, first=95)
    for test, speakers in (("", ["150", "151"]), ("dev-clean", ["150", "151", "152", "153"])):
        prepare(mini, tmp_path / f"out{test}", 1, test=test)
        found = speakers_of(tmp_path / f"out{test}")
        assert found["dev"] == ["195"] and found["test"] == speakers
    with pytest.raises(DataError, match="dev and test have the same utterances, such as"):
        prepare(mini, tmp_path / "out", 1, dev="dev-clean", test="dev-clean-2")
    with pytest.raises(Speech3Error, match="no part to test on"):  # not dev-clean-2
        prepare(mini, tmp_path / "out", 1, dev="dev-clean")


def test_each_part_is_counted_by_itself(
    mini: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part(mini, "train-clean-100", 14)  # has the speakers of train-clean-5
    monkeypatch.setattr("speech3.corpora.librispeech.PARTS", PARTS | {"train-clean-5": 36, "train-clean-100": 42})
    prepare(mini, tmp_path / "out", 1, train=["train-clean-100", "train-clean-5"])
    found = speakers_of(tmp_path / "out")
    assert len(found["train"] + found["dev"]) == 14
    assert "train-clean-100 has" not in (said := capsys.readouterr().err) and "train-clean-5 has" not in said
    prepare(mini, tmp_path / "default", 1)
    assert "train: train-clean-100; dev:" in capsys.readouterr().err


def test_another_language(mini: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="lang=de"):
        prepare(mini, tmp_path / "out", 1, lang="de")
    prepare(mini, tmp_path / "out", 1, lang="en-gb", lexicon="graphemes")


def test_a_dry_run_counts_the_chosen_parts(mini: Path, tmp_path: Path) -> None:
    (mini / "dev-clean-2").rename(tmp_path / "elsewhere")
    (mini / "dev-clean-2").symlink_to(tmp_path / "elsewhere")
    part(mini, "train-other-500", 5, first=60)
    part(mini, "dev-clean", 4, first=50)

    def seconds(*overrides: str) -> float:
        e = open_experiment("librispeech", tmp_path / "out", mini, list(overrides), "")
        speech = hours_of_speech(e, make_plan(planned_steps(e), e.out, None, None))
        assert speech and not speech.exact
        return 3600 * speech.train

    each = 3 * 800 / 16000  # of a speaker
    assert seconds() == pytest.approx(each * (12 + 5 + 2))
    assert seconds("corpus_options.train=[train-clean-5]") == pytest.approx(each * (12 + 2))
    assert seconds("corpus_options.train=[train-clean-5]", "corpus_options.test=dev-clean") == pytest.approx(each * 16)


def test_what_is_refused(mini: Path, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"nothing: not LibriSpeech: no part such as train-clean-5 here"):
        prepare(tmp_path / "nothing", tmp_path / "out", 1)
    with pytest.raises(MissingError, match="no part train-clean-360 here"):
        prepare(mini, tmp_path / "out", 1, train=["train-clean-360"])
    chapter = mini / "train-clean-5" / "103" / "7"
    (chapter / "103-7-0001.flac").rename(tmp_path / "lost.flac")
    with pytest.raises(MissingError, match=r"103-7\.trans\.txt"):
        prepare(mini, tmp_path / "out", 1)
    (tmp_path / "lost.flac").rename(chapter / "103-7-0001.flac")
    whole = (chapter / "103-7.trans.txt").read_text()
    (chapter / "103-7.trans.txt").write_text("103-7-0000 A MAN\n103-7-0001\n")
    with pytest.raises(Speech3Error, match=r"103-7\.trans\.txt:2: not an utterance and its text"):
        prepare(mini, tmp_path / "out", 1)
    (chapter / "103-7.trans.txt").write_text(whole)
    shutil.rmtree(mini / "dev-clean-2")
    with pytest.raises(Speech3Error, match=r"no part to test on: unpack"):
        prepare(mini, tmp_path / "out", 1)
    (mini / "dev-clean-2").mkdir()
    with pytest.raises(Speech3Error, match=r"dev-clean-2: no SPEAKER/CHAPTER/\*\.trans\.txt in it: unpack"):
        prepare(mini, tmp_path / "out", 1, train=["train-clean-5"], dev="train-clean-5")
    (mini / "dev-clean-2" / "84" / "7").mkdir(parents=True)
    (mini / "dev-clean-2" / "84" / "7" / "84_7.trans.tsv").touch()
    with pytest.raises(Speech3Error, match=r"\.trans\.txt in it: this is LibriTTS, another corpus"):
        prepare(mini, tmp_path / "out", 1, train=["train-clean-5"], dev="train-clean-5")


def laid_out(root: Path, train: int | None = None, test: int | None = None) -> None:
    """minilibri as mini LibriSpeech is unpacked, or its first utterances of train and test.

    The lexicon has only words that are said, so that guessing the others is learnt quickly.
    """
    said: set[str] = set()
    for split, name, most in (("train", "train-clean-5", train), ("test", "dev-clean-2", test)):
        data = read_datadir(SHARED / split)
        for key, utterance in list(data.utterances.items())[:most]:
            speaker, chapter, _ = key.split("-")
            directory = root / name / speaker / chapter
            directory.mkdir(parents=True, exist_ok=True)
            path = Path(data.recording(utterance))
            (directory / f"{key}.flac").symlink_to(path if path.is_absolute() else data.path / path)
            with (directory / f"{speaker}-{chapter}.trans.txt").open("a") as stream:
                stream.write(f"{key} {utterance.text}\n")
            said.update((utterance.text or "").split())
    lexicon = (SHARED / "lang" / "lexicon.txt").read_text().splitlines(keepends=True)
    (root / "librispeech-lexicon.txt").write_text("".join(line for line in lexicon if line.split()[0] in said))


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
@pytest.mark.slow
def test_real_speech_in_that_layout(tmp_path: Path) -> None:
    root = tmp_path / "LibriSpeech"
    laid_out(root)
    prepare(root, tmp_path / "out", 1)
    given, found = read_datadir(SHARED / "test"), read_datadir(tmp_path / "out" / "test")
    assert {k: (u.text, u.speaker) for k, u in found.utterances.items()} == {
        k: (u.text, u.speaker) for k, u in given.utterances.items()
    }
    trained = [read_datadir(tmp_path / "out" / name).utterances for name in ("train", "dev")]
    assert {**trained[0], **trained[1]}.keys() == read_datadir(SHARED / "train").utterances.keys()


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
def test_from_that_layout_to_word_error_rates(tmp_path: Path, speech3: Run) -> None:
    root, out = tmp_path / "LibriSpeech", tmp_path / "out"
    laid_out(root, train=60, test=10)
    process = speech3("recipe", "librispeech", "--source", root, "--out", out, *SMALL)
    assert process.returncode == 0, process.stderr
    rates = dict(re.findall(r"^librispeech (\w+) WER (\S+) \[", process.stdout, re.M))
    assert "tri" in rates and float(rates["tri"]) < 95, process.stdout  # most words of test are not in train
    assert re.search(r"^\| train-clean-5, \S+ h \| dev-clean-2 \| tri \| 3-gram ", process.stdout, re.M)
