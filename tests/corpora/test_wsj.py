"""WSJ0 and WSJ1 as they are distributed, on small discs of the same layout."""

import gzip
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora import wsj
from speech3.data.audio import load
from speech3.data.datadir import DataDir, read_datadir
from speech3.data.stats import lengths_s
from speech3.errors import DataError, FormatError, Speech3Error
from speech3.language.arpa import read_arpa

ARPA = "made by NIST\n\\data\\\nngram 1=5\n\n\\1-grams:\n-1 THE\n-1 MEN\n-1 </s>\n-9 <s>\n-2 <UNK>\n\\end\\\n"
CMUDICT = ";;; a comment\nTHE  DH AH0\nTHE(1)  DH IY0\nMEN  M EH1 N\nPERCENT  P ER0 S EH1 N T\nRISE  R AY1 Z\n"
DISCS = {  # sets: the disc and the recordings of its index, the index's disc and file
    "si84": ("11-1.1", "wsj0/si_tr_s/01t/01to030{}.wv1", "11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx"),
    "si284": ("13-1.1", "wsj1/si_tr_s/46a/46ac020{}.wv1", "13-34.1/wsj1/doc/indices/si_tr_s.ndx"),
    "dev93": ("13-16.1", "wsj1/si_dt_20/4k0/4k0c030{}.wv1", "13-34.1/wsj1/doc/indices/h1_p0.ndx"),
    "eval92": ("11-14.1", "wsj0/si_et_20/440/440c040{}.wv1", "11-13.1/wsj0/doc/indices/test/nvp/si_et_20.ndx"),
}


def compressed(text: str) -> bytes:
    """As by compress(1): nine-bit codes of single letters, enough for less than 250 of them."""
    assert len(text) < 250
    bits = sum(ord(letter) << (9 * place) for place, letter in enumerate(text))
    return b"\x1f\x9d\x90" + bits.to_bytes((9 * len(text) + 7) // 8, "little")


def make_discs(root: Path, *, together: bool = False, capitals: bool = False) -> None:
    """Two utterances a set; an index line of each, with the comments that the discs have."""

    def place(disc: str, file: str) -> Path:
        parts = file.upper() if capitals else file
        path = root / parts if together else root / disc / parts
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    for disc, pattern, index in DISCS.values():
        lines, sounds = ["; a comment\n"], [pattern.format(number) for number in (1, 2)]
        for sound in sounds:
            samples_N = np.random.default_rng(1).normal(0, 900, 1600).astype(np.int16)
            soundfile.write(place(disc, sound), samples_N, 16000, format="NIST", subtype="PCM_16")
            name = sound if "tr_s" in sound else sound.removesuffix(".wv1")
            lines.append(f"{disc.replace('-', '_').replace('.', '_')}:{name}\n")
        session = Path(sounds[0]).name[:6]
        texts = [f"The [lip_smack] *men* rise \\%PERCENT . ({session}0{n})\n" for n in (1, 2)]
        place(disc, f"{sounds[0].partition('/')[0]}/transcrp/{session}00.dot").write_text("".join(texts))
        index_disc, _, index_file = index.partition("/")
        if "tr_s_wv1" in index:
            lines.append("11_2_1: wsj0/si_tr_s/401/401o0301.wv1\n")  # is in the index, but not on the disc
        place(index_disc, index_file).write_text("".join(lines))
    place("13-32.1", "wsj1/doc/lng_modl/base_lm/bcb20onp.z").write_bytes(compressed(ARPA))
    (root / "cmudict-0.7b").write_text(CMUDICT)


def prepared(root: Path, out: Path, **options: str) -> dict[str, DataDir]:
    wsj.prepare(root, out, 1, **options)
    return {name: read_datadir(out / name) for name in ("train", "dev", "test")}


@pytest.mark.parametrize(("together", "capitals", "depth"), [(False, False, ""), (True, True, ""), (False, False, "d")])
def test_wsj(tmp_path: Path, capsys: pytest.CaptureFixture[str], together: bool, capitals: bool, depth: str) -> None:
    make_discs(tmp_path / "wsj" / depth, together=together, capitals=capitals)
    if depth:
        shutil.move(tmp_path / "wsj" / depth / "cmudict-0.7b", tmp_path / "wsj")
    found = prepared(tmp_path / "wsj", tmp_path / "out")
    assert {name: list(data.utterances) for name, data in found.items()} == {
        "train": ["01to0301", "01to0302", "46ac0201", "46ac0202"],
        "dev": ["4k0c0301", "4k0c0302"],
        "test": ["440c0401", "440c0402"],
    }
    utterance = found["test"].utterances["440c0401"]
    assert (utterance.text, utterance.speaker) == ("THE MEN RISE PERCENT", "440")
    assert load(found["test"], "440c0401")[1] == 16000
    assert "eval92 has 2 of its 333 utterances" in capsys.readouterr().err
    assert set(read_arpa(tmp_path / "out" / "lm.arpa.gz").words) >= {"THE", "MEN"}
    lexicon = (tmp_path / "out" / "lexicon.txt").read_text()
    assert "THE DH IY0\n" in lexicon and "comment" not in lexicon
    assert len(prepared(tmp_path / "wsj", tmp_path / "84", train="si84")["train"].utterances) == 2


def test_the_model_may_lie_beside_the_discs(tmp_path: Path) -> None:
    make_discs(tmp_path)
    (tmp_path / "lm_tgpr.arpa.gz").write_bytes(gzip.compress(ARPA.replace("MEN", "MAN").encode()))
    wsj.prepare(tmp_path, tmp_path / "out", 1, model="lm_tgpr")
    assert "MAN" in read_arpa(tmp_path / "out" / "lm.arpa.gz").words


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("The men", "THE MEN"),
        ("a\\.m. <and> [<door_slam] so [door_slam>] ~", "A.M. AND SO"),
        ("\\%PERCENT .POINT \\-\\-DASH", "PERCENT POINT -DASH"),
        ("wo:rd !EXCLAMATION\\-POINT yes! :COLON", "WORD !EXCLAMATION-POINT YES :COLON"),
        ("*mispronounced* ~cut", "MISPRONOUNCED CUT"),
    ],
)
def test_transcripts(written: str, words: str) -> None:
    assert wsj.normalized(written) == words


def test_what_is_missing(tmp_path: Path) -> None:
    root, out = tmp_path / "wsj", tmp_path / "out"
    with pytest.raises(Speech3Error, match=r"not WSJ: no disc such as 11-1\.1 .*LDC93S6A"):
        wsj.prepare(tmp_path, out, 1)
    make_discs(root)

    def fault(**options: str) -> str:
        with pytest.raises(Speech3Error) as error:
            wsj.prepare(root, out, 1, **options)
        return str(error.value)

    assert "corpus_options.dev=dev92: unknown; choose from si84, si284, dev93" in fault(dev="dev92")
    assert "no language model bcb05onp (wsj0/doc/lng_modl/base_lm/bcb05onp.z" in fault(model="bcb05onp")
    (root / "bcb05onp.arpa").write_text("nothing\n")
    assert "bcb05onp.arpa: not an ARPA language model" in fault(model="bcb05onp")
    dots = next(root.glob("11-14.1/**/*.dot"))
    text = dots.read_text()
    dots.write_text("The men\n")
    assert re.search(r"440c0400\.dot:1: not `WORDS \(UTTERANCE\)`: `The men`", fault())
    dots.write_text(text.splitlines()[0] + "\n")
    assert "1 of the 2 utterances of eval92 have no transcript, such as 440c0402 (440c0400.dot)" in fault()
    dots.write_text(text)
    shutil.rmtree(root / "13-16.1")
    assert "dev93 lacks recordings (disc 13-16.1: 2, such as wsj1/si_dt_20/4k0/4k0c0301.wv1)" in fault()
    shutil.rmtree(root / "13-34.1")
    assert "has no wsj1/doc/indices/h1_p0.ndx, the index of dev93: copy the discs of WSJ1 (LDC94S13A)" in fault()
    (root / "11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx").write_text("wsj0/si_tr_s/01t/01to0301.wv1\n")
    assert "tr_s_wv1.ndx:1: not `DISC:FILE`" in fault()


def test_what_shorten_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_discs(tmp_path)
    sound = next(tmp_path.glob("11-14.1/**/440c0401.wv1"))
    sound.write_bytes(
        sound.read_bytes().replace(b"sample_coding -s3 pcm\n", b"sample_coding -s26 pcm,embedded-shorten-v2.00\n", 1)
    )
    assert b"shorten" in sound.read_bytes()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(FormatError, match=r"440c0401\.wv1"):
        wsj.prepare(tmp_path, tmp_path / "out", 1)
    program = tmp_path / "bin" / "sph2pipe"  # stands for it: takes the same arguments
    program.parent.mkdir()
    other = next(tmp_path.glob("11-14.1/**/440c0402.wv1"))
    soundfile.write(tmp_path / "read.wav", soundfile.read(other)[0], 16000)
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = \'-f wav\' ] && [ -f "$3" ] && cat {tmp_path}/read.wav\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}/usr/bin:/bin")
    wsj.prepare(tmp_path, tmp_path / "out", 1)
    data = read_datadir(tmp_path / "out" / "test")
    np.testing.assert_array_equal(load(data, "440c0401")[0], load(data, "440c0402")[0])
    program.unlink()  # the headers on the disc have the lengths, so it is not called for them
    assert lengths_s(data) == {"440c0401": 0.1, "440c0402": 0.1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cmudict.dict", b"the DH AH0\nthe(2) DH IY0\nmen M EH1 N # plural, of man\npercent P ER0\nrise R AY1 Z\n"),
        (
            "cmudict-0.7b",
            b";;; # CMUdict  --  Major Version: 0.07\n#HASH-MARK  HH AE1 SH M AA2 R K\n;SEMI-COLON  S EH1 M IY0\n"
            b"D\xc9J\xc0  D EY2 ZH AA2\nTHE  DH AH0\nTHE(1)  DH IY0\nMEN  M EH1 N\nPERCENT  P ER0\nRISE  R AY1 Z\n",
        ),
    ],
)
def test_forms_of_cmudict(tmp_path: Path, name: str, content: bytes) -> None:
    make_discs(tmp_path)
    (tmp_path / "cmudict-0.7b").unlink()
    (tmp_path / name).write_bytes(content)
    wsj.prepare(tmp_path, tmp_path / "out", 1)
    lines = (tmp_path / "out" / "lexicon.txt").read_text().splitlines()
    assert {"THE DH AH0", "THE DH IY0", "MEN M EH1 N", "PERCENT P ER0", "RISE R AY1 Z"} <= set(lines)
    if name == "cmudict-0.7b":
        assert {"#HASH-MARK HH AE1 SH M AA2 R K", ";SEMI-COLON S EH1 M IY0", "DÉJÀ D EY2 ZH AA2"} <= set(lines)
    assert not (tmp_path / "out" / "guessed.txt").exists() and not any(";;;" in line for line in lines)


def test_discs_that_were_converted_to_wav(tmp_path: Path) -> None:
    make_discs(tmp_path)
    for sound in tmp_path.glob("11-14.1/**/*.wv1"):
        soundfile.write(sound, soundfile.read(sound, dtype="int16")[0], 16000, format="WAV")
        assert sound.read_bytes().startswith(b"RIFF")
    found = prepared(tmp_path, tmp_path / "out")["test"]
    assert found.recordings["440c0401"].endswith("440c0401.wv1") and len(load(found, "440c0401")[0]) == 1600
    sound.write_bytes(b"ID3")
    with pytest.raises(Speech3Error, match=r"wv1: neither a NIST sphere file nor wav"):
        wsj.prepare(tmp_path, tmp_path / "out", 1)


def test_links_to_the_discs(tmp_path: Path) -> None:
    make_discs(tmp_path / "common", together=True)
    (tmp_path / "wsj").mkdir()
    for path in (tmp_path / "common").iterdir():
        (tmp_path / "wsj" / path.name).symlink_to(path)
    assert len(prepared(tmp_path / "wsj", tmp_path / "out")["train"].utterances) == 4


def test_another_language(tmp_path: Path) -> None:
    make_discs(tmp_path)
    with pytest.raises(Speech3Error, match="lang=fr: WSJ is in English"):
        wsj.prepare(tmp_path, tmp_path / "out", 1, lang="fr")
    with pytest.raises(DataError, match="dev and test have the same utterances, such as"):
        wsj.prepare(tmp_path, tmp_path / "out", 1, dev="eval92")
