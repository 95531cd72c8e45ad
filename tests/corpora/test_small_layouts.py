"""AISHELL-1, AN4, TED-LIUM and yesno as they are distributed, on small trees of the same layout."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora import aishell, an4, tedlium, yesno
from speech3.data.audio import load
from speech3.data.datadir import read_datadir
from speech3.errors import FormatError, MissingError, Speech3Error


def sound(path: Path, seed: int = 1, rate_hz: int = 16000) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    tone_N = np.sin(np.arange(1600) / 20) * 8000 + np.random.default_rng(seed).normal(0, 50, 1600)
    samples_N = tone_N.astype(np.int16)
    if path.suffix == ".raw":
        path.write_bytes(samples_N.astype(">i2").tobytes())
    else:
        soundfile.write(path, samples_N, rate_hz, format="NIST" if path.suffix == ".sph" else None)
    return samples_N


def parts_of(out: Path) -> dict[str, dict[str, tuple[str | None, str]]]:
    found = {}
    for name in ("train", "dev", "test"):
        utterances = read_datadir(out / name).utterances.values()
        found[name] = {utterance.id: (utterance.text, utterance.speaker) for utterance in utterances}
    return found


def test_aishell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, lines = tmp_path / "aishell", []
    for number, (part, speaker) in enumerate(
        (("train", "S0002"), ("train", "S0003"), ("dev", "S0724"), ("test", "S0764"))
    ):
        for sentence in range(2):
            name = f"BAC009{speaker}W{sentence:04d}"
            sound(root / "data_aishell" / "wav" / part / speaker / f"{name}.wav", number)
            lines.append(f"{name} 你好  世界\n")
    sound(root / "data_aishell" / "wav" / "train" / "S0002" / "BAC009S0002W9999.wav")  # some have no transcript
    with pytest.raises(Speech3Error, match=r"no data_aishell/transcript/aishell_transcript_v0\.8\.txt in it"):
        aishell.prepare(root, tmp_path / "out", 1)
    (root / "data_aishell" / "transcript").mkdir()
    (root / "data_aishell" / "transcript" / "aishell_transcript_v0.8.txt").write_text("".join(lines))
    with pytest.raises(Speech3Error, match=r"lexicon\.txt: no such file; unpack resource_aishell"):
        aishell.prepare(root, tmp_path / "out", 1)
    (root / "resource_aishell").mkdir()
    (root / "resource_aishell" / "lexicon.txt").write_text(
        "SIL sil\n<SPOKEN_NOISE> sil\n你好 n i3 h ao3\n世界 sh iy4 j ie4\n"
    )
    aishell.prepare(root, tmp_path / "out", 1)
    found = parts_of(tmp_path / "out")
    assert {name: len(part) for name, part in found.items()} == {"train": 4, "dev": 2, "test": 2}
    assert found["test"]["BAC009S0764W0000"] == ("你好 世界", "S0764")
    lexicon = (tmp_path / "out" / "lexicon.txt").read_text()
    assert "你好 n i3 h ao3" in lexicon and "sil" not in lexicon.lower()
    assert "test has 2 of its 7,176 utterances" in capsys.readouterr().err
    (root / "data_aishell" / "wav" / "S0765.tar.gz").touch()
    with pytest.raises(MissingError, match="wav: archives not unpacked"):
        aishell.prepare(root, tmp_path / "out", 1)
    (root / "data_aishell" / "wav" / "S0765.tar.gz").unlink()
    for path in (root / "data_aishell" / "wav" / "dev" / "S0724").iterdir():
        path.unlink()
    (root / "data_aishell" / "wav" / "S0724.tar.gz").touch()
    with pytest.raises(Speech3Error, match=r"wav/dev: no recordings .*unpack the 1 archives"):
        aishell.prepare(root, tmp_path / "out", 1)


def census(root: Path, extension: str) -> dict[str, np.ndarray]:
    """AN4 with ten speakers of training and one of test."""
    (root / "etc").mkdir(parents=True)
    samples, spoken = {}, {"an4_train": [f"s{number:02d}" for number in range(10)], "an4_test": ["t01"]}
    for name, folder in (("an4_train", "an4_clstk"), ("an4_test", "an4test_clstk")):
        ids, texts = [], []
        for speaker in spoken[name]:
            for number in range(2):
                utterance = f"cen{number}-{speaker}-b"
                ids.append(f"{folder}/{speaker}/{utterance}\n")
                texts.append(f"<s> RUBOUT G M </s> ({utterance})\n" if name == "an4_train" else f"G M ({utterance})\n")
                samples[utterance] = sound(root / "wav" / folder / speaker / f"{utterance}.{extension}")
        (root / "etc" / f"{name}.fileids").write_text("".join(ids))
        (root / "etc" / f"{name}.transcription").write_text("".join(texts))
    (root / "etc" / "an4.dic").write_text("G\tJH IY\nM\tEH M\nRUBOUT\tR AH B AW T\nRUBOUT(2)\tR UH B AW T\n")
    return samples


@pytest.mark.parametrize("extension", ["sph", "raw"])
def test_an4(tmp_path: Path, extension: str) -> None:
    samples = census(tmp_path / "an4", extension)
    an4.prepare(tmp_path, tmp_path / "out", 1)
    found = parts_of(tmp_path / "out")
    assert {name: len(part) for name, part in found.items()} == {"train": 18, "dev": 2, "test": 2}
    assert found["test"]["t01-cen0-t01-b"] == ("G M", "t01")
    assert set(found["train"].values()) <= {("RUBOUT G M", f"s{number:02d}") for number in range(10)}
    wave_N, rate_hz = load(read_datadir(tmp_path / "out" / "test"), "t01-cen1-t01-b")
    assert rate_hz == 16000
    np.testing.assert_array_equal(np.round(wave_N * 32768).astype(np.int16), samples["cen1-t01-b"])
    (tmp_path / "out").rename(tmp_path / "moved")
    assert len(load(read_datadir(tmp_path / "moved" / "test"), "t01-cen1-t01-b")[0]) == len(wave_N)
    lexicon = (tmp_path / "moved" / "lexicon.txt").read_text()
    assert "RUBOUT R AH B AW T\n" in lexicon and "RUBOUT R UH B AW T\n" in lexicon


def test_what_is_missing_from_an4(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"not AN4: no etc/an4\.dic"):
        an4.prepare(tmp_path, tmp_path / "out", 1)
    root = tmp_path / "an4"
    census(root, "sph")
    (root / "wav" / "an4test_clstk" / "t01" / "cen1-t01-b.sph").unlink()
    with pytest.raises(Speech3Error, match=r"cen1-t01-b: no recording with this name"):
        an4.prepare(root, tmp_path / "out", 1)
    (root / "etc" / "an4_test.transcription").write_text("G M\n")
    with pytest.raises(FormatError, match=r"an4_test\.transcription:1"):
        an4.prepare(root, tmp_path / "out", 1)
    (root / "etc" / "an4_test.transcription").write_text("<s> G M </s> (other)\n")
    with pytest.raises(Speech3Error, match=r"no transcript of cen0-t01-b, which an4_test\.fileids"):
        an4.prepare(root, tmp_path / "out", 1)


def test_yesno(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{number:08b}" for number in (*range(12), *range(128, 134))]
    for name in names:
        sound(tmp_path / "waves_yesno" / f"{'_'.join(name)}.wav", rate_hz=8000)
    yesno.prepare(tmp_path, tmp_path / "out", 1)
    assert "yesno has 18 of its 60 recordings" in capsys.readouterr().err
    found = parts_of(tmp_path / "out")
    assert {name: len(part) for name, part in found.items()} == {"train": 10, "dev": 2, "test": 6}
    assert found["test"]["1_0_0_0_0_0_0_1"][0] == "YES NO NO NO NO NO NO YES"
    with pytest.raises(Speech3Error, match=r"not the yesno corpus"):
        yesno.prepare(tmp_path / "out", tmp_path / "again", 1)


STM = """;; a comment
Talk 1 Talk 0.02 0.05 <o,f0,male> it 's <unk> HERE(2) <sil>
Talk 1 Talk 0.05 0.08 <o,f0,male> {NOISE}
Talk 1 inter_segment_gap 0.08 0.09 <o,,unknown> ignore_time_segment_in_scoring
Talk 1 Talk 0.09 0.1 <o,f0,male> dog 's here
"""


@pytest.mark.parametrize(("release", "talks"), [(1, "774"), (2, "1,495"), (3, "2,351")])
def test_tedlium(tmp_path: Path, release: int, talks: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / f"TEDLIUM_release-{release}"
    places = {"train": "data", "dev": "legacy/dev", "test": "legacy/test"}
    for name, newer in places.items():
        place = root / (newer if release == 3 else name)
        sound(place / "sph" / f"{name}Talk.sph")
        (place / "stm").mkdir()
        (place / "stm" / f"{name}Talk.stm").write_text(STM)
    sound(root / (places["dev"] if release == 3 else "dev") / "sph" / "otherTalk.sph")
    with pytest.raises(Speech3Error, match=r"not TED-LIUM: no TEDLIUM\*\.dic"):
        tedlium.prepare(root, tmp_path / "out", 1)
    (root / ("TEDLIUM.150K.dic" if release == 1 else "TEDLIUM.152k.dic")).write_text(
        "<unk> NSN\nit IH T\nit's IH T S\nHERE HH IH R\nHERE(2) HH IY R\nhere HH IH R\ndog D AO G\n's Z\n"
    )
    tedlium.prepare(root, tmp_path / "out", 1)
    said = capsys.readouterr().err
    assert "test has 1 of its 11 talks" in said and f"train has 1 of its {talks} talks" in said
    assert "dev: left out, as they have no transcript in stm/: otherTalk.sph; unpack it again" in said
    data = read_datadir(tmp_path / "out" / "test")
    assert {(u.id, u.text, u.start_s, u.end_s) for u in data.utterances.values()} == {
        ("testTalk-0000002-0000005", "it's HERE", 0.02, 0.05),
        ("testTalk-0000009-0000010", "dog 's here", 0.09, 0.1),
    }
    assert len(load(data, "testTalk-0000002-0000005")[0]) == 480
    lexicon = (tmp_path / "out" / "lexicon.txt").read_text()
    assert "HERE HH IY R\n" in lexicon and "NSN" not in lexicon
    transcript = next(root.glob("**/testTalk.stm"))
    transcript.write_text("Talk 1 Talk begin\n")
    with pytest.raises(Speech3Error, match=r"testTalk\.stm:1: not a segment"):
        tedlium.prepare(root, tmp_path / "out", 1)
    next(root.glob("**/trainTalk.sph")).unlink()
    with pytest.raises(Speech3Error, match=r"trainTalk\.sph: no such file, but its transcript"):
        tedlium.prepare(root, tmp_path / "out", 1)
