"""The English aligner in the package: when it is used, and how far off it is on hand labels."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speech3 import Aligner
from speech3.config.reading import shipped
from speech3.data.datadir import DataDir, Utterance
from speech3.errors import MissingError
from speech3.evaluate.boundaries import read_times
from speech3.recipe.aligner import english_for
from speech3.recipe.aligner_output import AlignRequest, align_source

TIMIT = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "timit_sample"
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_it_is_small_and_knows_cmus_phones() -> None:
    files = [path for path in (shipped("data") / "english_aligner").iterdir() if path.name != "README.md"]
    assert sum(path.stat().st_size for path in files) <= 1_500_000
    lexicon = Aligner.load("english").recognizer.hmm.lexicon
    assert {lexicon.base_phone(phone) for phone in lexicon.phones} >= {"AH0", "IY1", "ZH", "SIL", "SPN"}


def test_advice_for_digits_in_a_text_is_to_write_words() -> None:
    with pytest.raises(MissingError, match="in words") as raised:
        Aligner.load("english").align(np.zeros(16000, np.float32), 16000, "6 6 2 8 1")
    assert "Aligner.load" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "lang", "used"),
    [
        ("she had your dark suit in greasy wash water", None, True),
        ("maitre corbeau sur un arbre perche tenait en son bec un fromage", None, False),
        ("she had your dark suit", "de", False),
        ("", None, False),
        ("she had your dark suit", "en-us", True),
    ],
)
def test_it_is_used_for_english(text: str, lang: str | None, used: bool) -> None:
    data = DataDir(Path(), {"a": "a.wav"}, {"a": Utterance("a", "a", "a", text)})
    assert (english_for(data, 600.0, lang) is not None) == used
    assert not (lang and english_for(data, 601.0, lang)), "with more than ten minutes an aligner is trained"


@pytest.mark.skipif(not TIMIT.exists(), reason="../shared/corpora/timit_sample is not here")
def test_other_phones_are_aligned_as_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, said = next(iter((TIMIT / "text").read_text().splitlines())).split(" ", 1)
    lexicon = {
        **{"she": "ʃ iː", "had": "h æ d", "your": "j ʊ ɾ", "dark": "d ɑː r k", "suit": "s y t", "in": "ɪ n"},
        **{"greasy": "ɡ r iː s i", "wash": "w ɒ ʃ", "water": "w ɔː t ɐ", "all": "ɔː l", "year": "j ɪə"},
    }
    assert set(said.split()) == set(lexicon)
    (tmp_path / "ipa.txt").write_text("".join(f"{word} {phones}\n" for word, phones in lexicon.items()))
    request = AlignRequest(text=said, lexicon=tmp_path / "ipa.txt", formats=("ctm",), jobs=1)
    align_source(TIMIT / "flac" / f"{name}.flac", tmp_path / "out", request)
    assert "ɾ -> D" in capsys.readouterr().err
    phones = read_times(tmp_path / "out" / "phones.ctm", "phones").tracks["phones"][name]
    assert [phone.label for phone in phones if phone.label != "SIL"][:5] == ["ʃ", "iː", "h", "æ", "d"]
    words = read_times(tmp_path / "out" / "words.ctm").tracks["words"][name]
    truth = read_times(TIMIT / "ref_words.ctm", level="words").tracks["words"][name]
    off_s = [abs(ours.start_s - true.start_s) for ours, true in zip(words, truth, strict=True)]
    assert sum(off_s) / len(off_s) < 0.03
    # Training starts from it, if there is to be training.
    align_source(TIMIT / "flac" / f"{name}.flac", tmp_path / "trained", replace(request, train=True))
    assert "training starts from the alignment of the English aligner" in capsys.readouterr().err
    # The model that stays aligns again, and is not English.
    assert Aligner.load(tmp_path / "out" / "model").recognizer.hmm.lexicon.by_word.keys() == {*lexicon, "<unk>"}


@pytest.mark.slow
@pytest.mark.skipif(not TIMIT.exists(), reason="../shared/corpora/timit_sample is not here")
def test_word_boundaries_of_hand_labels(tmp_path: Path, speech3: Run) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for line in (TIMIT / "text").read_text().splitlines():
        name, text = line.split(" ", 1)
        (folder / f"{name}.flac").symlink_to(TIMIT / "flac" / f"{name}.flac")
        (folder / f"{name}.txt").write_text(text.capitalize() + ".")
    process = speech3("align", folder, tmp_path / "out", "--format", "ctm", "--jobs", 1)
    assert process.returncode == 0 and "the English aligner in speech3 is used" in process.stderr, process.stderr
    truth = read_times(TIMIT / "ref_words.ctm", level="words").tracks["words"]
    found = read_times(tmp_path / "out" / "words.ctm").tracks["words"]
    off_s = [
        abs(getattr(ours, edge) - getattr(true, edge))
        for name in truth
        for true, ours in zip(truth[name], found[name], strict=True)
        for edge in ("start_s", "end_s")
    ]
    assert len(off_s) == 1390 and sum(off_s) / len(off_s) < 0.0155  # 15.2 ms
