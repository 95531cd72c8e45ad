"""A folder of recordings with transcripts as the source of the recipe `any`, to the end of its stage `data`."""

from pathlib import Path

import pytest
from fieldwork import aligned, eaf, long_textgrid, recording, referring, short_textgrid, tier

from speech3.corpora.anyspeech import prepare
from speech3.corpora.folder import read_folder, read_speech
from speech3.data.datadir import DataDir, read_datadir
from speech3.errors import DataError, MissingError, SettingError, Speech3Error


def texts(data: DataDir) -> dict[str, str | None]:
    return {key: utterance.text for key, utterance in data.utterances.items()}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)


def corpus(root: Path, utterances: int = 40, words: str = "mama anasoma kitabu leo") -> Path:
    """Recordings of ten speakers, each with a .txt."""
    for number in range(utterances):
        name = f"s{number % 10}_{number:02d}"
        recording(root / f"{name}.wav", 0.2)
        write(root / f"{name}.txt", f"{words}\n")
    return root


def test_text_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "Kofi_1.wav")
    recording(tmp_path / "Kofi 2.flac")
    recording(tmp_path / "Ama-x.WAV", 70)
    write(tmp_path / "Kofi_1.txt", "“Ng’ombe WANGU” — a:ni,\nna-kula! [laughs  loudly]\n")
    write(tmp_path / "Kofi 2.txt", "Ẹ kú 'ilé'", "utf-16")
    write(tmp_path / "Ama-x.txt", "long")
    data, faults = read_folder(tmp_path)
    assert texts(data) == {
        "Ama-x": "long",
        "Kofi_1": "ng'ombe wangu a:ni na-kula [laughs_loudly]",
        "Kofi_2": "ẹ kú ilé",
    }
    assert {u.speaker for u in data.utterances.values()} == {"Kofi", "Ama"}
    assert [(f.kind, f.warning) for f in faults] == [("long", True)]
    told = said(capsys)
    assert "1 long utterance kept: Ama-x.txt: is one utterance of 70 s; mark its sentences in Praat or ELAN" in told
    assert (
        "3 utterances of 3 recordings; 2 speakers, from the recordings' names up to the first space, _ or -: Ama,"
        in told
    )


def test_text_files_named_with_the_suffix_of_the_recording(tmp_path: Path) -> None:
    for name in ("a.wav", "b.flac"):
        recording(tmp_path / name)
        write(tmp_path / f"{name}.txt", f"leo {name[0]}")
    data, faults = read_folder(tmp_path)
    assert texts(data) == {"a": "leo a", "b": "leo b"} and not faults


def test_recordings_that_were_converted_keep_their_transcripts(tmp_path: Path) -> None:
    for name in ("a.mp3", "b"):
        recording(tmp_path / f"{name}.wav")
        write(tmp_path / f"{name}.txt", f"leo {name[0]}")
    data, faults = read_folder(tmp_path)
    assert sorted(texts(data).values()) == ["leo a", "leo b"] and not faults


def test_speakers_from_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, name in (("Kofi", "one_1"), ("Kofi", "one_2"), ("Ama B", "one_1")):
        recording(tmp_path / folder / f"{name}.wav")
        write(tmp_path / folder / f"{name}.txt", "leo")
    data, _ = read_folder(tmp_path)
    assert list(data.speakers()) == ["Ama_B", "Kofi"] and set(data.utterances) == {
        "Ama_B_one_1",
        "Kofi_one_1",
        "Kofi_one_2",
    }
    assert "2 speakers, from their folders: Ama_B, Kofi" in said(capsys)


def test_transcripts_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """`text/` is not Kaldi's file `text`; hidden files and lang/ are not transcripts."""
    for name in ("a_1", "b_1"):
        recording(tmp_path / "wav" / f"{name}.wav")
        write(tmp_path / "text" / f"{name}.TextGrid", short_textgrid({"sentence": [(0.1, 1.9, name[0])]}))
        write(tmp_path / "wav" / f"._{name}.txt", "rubbish")
    write(tmp_path / "lang" / "a_1.eaf", "rubbish")

    data, faults = read_folder(tmp_path)
    assert set(texts(data).values()) == {"a", "b"} and not faults
    (tmp_path / "lang" / "text").write_text("leo\n")
    with pytest.raises(Speech3Error, match=r"2 utterances \(4 s\): too few"):
        prepare(tmp_path, tmp_path / "out", 1, lexicon="graphemes")


def test_linked_folders(tmp_path: Path) -> None:
    corpus(tmp_path / "tapes", 2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "disk").symlink_to(tmp_path / "tapes")
    (tmp_path / "tapes" / "back").symlink_to(tmp_path / "in")  # a circle
    data, faults = read_folder(tmp_path / "in")
    assert set(data.recordings) == {"disk_s0_00", "disk_s1_01"} and not faults


def test_tiers_of_two_speakers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each annotation becomes an utterance of the speaker whom its tier names; where none is named, of the file's."""
    recording(tmp_path / "story.wav", 5)
    write(
        tmp_path / "story.eaf",
        eaf(
            {"t1": 0, "t2": 1000, "t3": 1500, "t4": 3000},
            tier("ref@K", aligned("a1", "t1", "t2", "1"), participant="Kofi", of_type="ref"),
            tier("tx@K", referring("b1", "a1", "Leo."), participant="Kofi", of_type="tx", parent="ref@K"),
            tier("ref@A", aligned("a2", "t3", "t4", "2"), of_type="ref"),
            tier("tx@A", referring("b2", "a2", "Jana?"), of_type="tx", parent="ref@A"),
        ),
    )
    recording(tmp_path / "ben_1.wav")
    write(tmp_path / "ben_1.TextGrid", long_textgrid({"tx": [(0.0, 0.4, ""), (0.4, 1.2, "Mama"), (1.2, 2, " ")]}))
    with pytest.raises(DataError, match=r"several tiers.*as in tier=tx .*:\n.*tier=tx"):
        read_folder(tmp_path)
    data, faults = read_folder(tmp_path, "tx")
    assert not faults  # empty intervals are a TextGrid's silence
    assert texts(data) == {
        "A-story-00001500-00003000": "jana",
        "Kofi-story-00000000-00001000": "leo",
        "ben_1-00000400-00001200": "mama",
    }
    found = data.utterances["A-story-00001500-00003000"]
    assert (found.speaker, found.recording, found.start_s, found.end_s) == ("A", "story", 1.5, 3.0)
    assert "3 speakers, from the tiers or the recordings' names up to the first space, _ or -: A, Kofi, ben" in said(
        capsys
    )


def test_tiers_that_are_named_after_their_speakers(tmp_path: Path) -> None:
    recording(tmp_path / "x.wav")
    write(tmp_path / "x.TextGrid", short_textgrid({"Kofi": [(0, 1, "leo")], "Ama": [(1, 2, "jana")]}))
    data, _ = read_folder(tmp_path, "Kofi,Ama")
    assert list(data.speakers()) == ["Ama", "Kofi"]


def test_every_tier_may_be_that_of_a_speaker(tmp_path: Path) -> None:
    for name, tiers in (("x", {"Kofi": "mama", "Ama": "leo"}), ("y", {"Esi": "jana"})):
        recording(tmp_path / f"{name}.wav")
        stretches = {who: [(place, place + 1, text)] for place, (who, text) in enumerate(tiers.items())}
        (tmp_path / f"{name}.TextGrid").write_text(short_textgrid(stretches))
    with pytest.raises(DataError, match=r"tier='\*'"):
        read_folder(tmp_path)
    data, _ = read_folder(tmp_path, "*")
    assert {(u.speaker, u.text) for u in data.utterances.values()} == {
        ("Kofi", "mama"),
        ("Ama", "leo"),
        ("Esi", "jana"),
    }


def test_subtitles_and_label_tracks_are_no_speakers(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        recording(tmp_path / f"{name}.wav")
    for name in ("a", "b"):
        (tmp_path / f"{name}.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nmama\n")
    (tmp_path / "c.txt").write_text("0.0\t1.0\tleo\n")
    (tmp_path / "d.TextGrid").write_text(short_textgrid({"Kofi": [(0, 1, "leo")]}))
    data, _ = read_folder(tmp_path, "*")
    assert list(data.speakers()) == ["Kofi", "a", "b", "c"]


def test_a_file_without_text_in_its_tiers_and_a_tier_that_is_not_there(tmp_path: Path) -> None:
    for name, text in (("a", "leo"), ("b", "")):
        recording(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.TextGrid").write_text(short_textgrid({"Kofi": [(0, 1, text)]}))
    _, faults = read_folder(tmp_path, "*")
    assert [fault.problem for fault in faults] == ["has no tier with text"]
    with pytest.raises(MissingError, match="tier=words"):
        read_speech(tmp_path, "words", transcribed=False)
    (tmp_path / "a.TextGrid").unlink()
    data, _ = read_speech(tmp_path, transcribed=False)
    assert list(data.utterances) == ["a", "b"]


def test_a_second_recording_is_named_once(tmp_path: Path) -> None:
    for name in ("a.wav", "a.mp3", "b.wav", "b.mp3"):
        recording(tmp_path / name)
    write(tmp_path / "a.txt", "leo")
    data, faults = read_speech(tmp_path, transcribed=False)
    assert list(data.recordings) == ["a", "b"]
    assert sorted((fault.kind, Path(fault.where).name) for fault in faults) == [
        ("second recording", "a.mp3"),
        ("second recording", "b.mp3"),
    ]


def test_a_speaker_has_one_name(tmp_path: Path) -> None:
    """Also where no other one speaks, and with other capitals; else test would have voices of train."""
    for name, tiers in {
        "one": {"Kofi": [(0, 1, "leo")], "Ama": [(1, 2, "jana")]},
        "two": {"kofi": [(0, 1, "leo")]},
        "KOFI_3": {"kofi": []},
        "ama_4": {"notes": []},
    }.items():
        recording(tmp_path / f"{name}.wav")
        write(tmp_path / f"{name}.TextGrid", short_textgrid(tiers))
    for name in ("KOFI_3", "ama_4"):
        (tmp_path / f"{name}.TextGrid").unlink()
        write(tmp_path / f"{name}.txt", "leo")
    data, _ = read_folder(tmp_path, "Kofi,Ama")
    assert {name.casefold(): len(ids) for name, ids in data.speakers().items()} == {"ama": 2, "kofi": 3}


def test_tiers_of_which_each_file_has_one(tmp_path: Path) -> None:
    for name, tier_name in (("ben_1", "text"), ("ama_1", "tx")):
        recording(tmp_path / f"{name}.wav")
        write(tmp_path / f"{name}.TextGrid", short_textgrid({tier_name: [(0, 1, "leo")]}))
    data, _ = read_folder(tmp_path, "text,tx")
    assert list(data.speakers()) == ["ama", "ben"]


def test_long_annotations_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "ben.wav", 70)
    write(tmp_path / "ben.TextGrid", short_textgrid({"tx": [(1, 69, "leo jana")]}, 70))
    data, faults = read_folder(tmp_path)
    assert len(data.utterances) == 1 and [fault.warning for fault in faults] == [True]
    assert "1 long utterance kept: ben.TextGrid: 'leo jana' at 1.00 s: is one utterance of 68 s; mark its sent" in said(
        capsys
    )


def test_names_in_other_capitals(tmp_path: Path) -> None:
    for name in ("Ben_1.WAV", "ama_1.wav", "Ama_1.wav"):
        recording(tmp_path / name)
    for name in ("ben_1.txt", "AMA_1.txt"):
        write(tmp_path / name, "leo")
    data, faults = read_folder(tmp_path)
    assert list(data.recordings) == ["Ben_1"]  # whose AMA_1.txt is remains unknown
    assert sorted(Path(fault.where).name for fault in faults) == ["AMA_1.txt", "Ama_1.wav", "ama_1.wav"]


def test_annotations_that_cannot_be_used_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = corpus(tmp_path / "in"), tmp_path / "out"
    recording(source / "story.wav", 10)
    slots = {f"t{ms}": ms for ms in (0, 1000, 2000, 2950, 3000, 4000, 5000, 9000, 10000, 10050, 12000)} | {"t": None}
    write(
        source / "story.eaf",
        eaf(
            slots,
            tier(
                "tx@K",
                aligned("a1", "t0", "t2000", "mama anasoma"),
                aligned("a2", "t2000", "t3000", "kitabu"),
                aligned("a3", "t4000", "t5000", " ?! "),
                aligned("a4", "t5000", "t5000", "leo"),
                aligned("a5", "t9000", "t10050", "jana"),
                aligned("a6", "t9000", "t12000", "jana leo"),
                aligned("a7", "t", "t", "lost"),
                aligned("a8", "t10000", "t10050", "baada"),
            ),
            tier("tx@A", aligned("b1", "t1000", "t2000", "mm"), aligned("b2", "t2950", "t4000", "anapika")),
        ),
    )
    prepare(source, out, 1, lexicon="graphemes")
    lines = (out / "left_out.txt").read_text().splitlines()
    assert [line.partition("story.eaf: ")[2] for line in lines] == [
        "'?!' at 4.00 s: has no words; write what is said",
        "'leo' at 5.00 s: does not end after its start; correct its times",
        "'jana leo' at 9.00 s: lies outside the recording, which lasts 10.00 s; correct its times, or get the whole"
        " recording",
        "'baada' at 10.00 s: lies outside the recording, which lasts 10.00 s; correct its times, or get the whole"
        " recording",
        "lost: its times are not set; set them in ELAN",
        "'mama anasoma' at 0.00 s: 1.00 of its 2.00 s overlap another one; simultaneous speech is not used",
        "'mm' at 1.00 s: 1.00 of its 1.00 s overlap another one; simultaneous speech is not used",
    ]
    told = said(capsys)
    for kind in ("1 (empty)", "1 (no length)", "2 (outside)", "1 (no times)", "2 (overlap)"):
        assert f"left out {kind}: story.eaf: " in told
    assert f"everything that is left out is listed in {out / 'left_out.txt'}" in told
    kept = {u.id: u for part in ("train", "dev", "test") for u in read_datadir(out / part).utterances.values()}
    assert {key for key in kept if "story" in key} == {
        "K-story-00002000-00003000", "A-story-00002950-00004000", "K-story-00009000-00010000",
    }  # fmt: skip  # an overlap of a twentieth is no reason, nor is an end 50 ms after the recording's


def test_files_that_cannot_be_used_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = corpus(tmp_path / "in", 3)
    for name in ("alone", "s0_cut", "s0_bad", "s0_latin", "s0_empty", "s0_other"):
        recording(source / f"{name}.wav")
    (source / "s0_cut.wav").write_bytes((source / "s0_cut.wav").read_bytes()[:9000])
    for name in ("s0_cut", "nobody", "s0_empty"):
        write(source / f"{name}.txt", "leo" if name != "s0_empty" else " ... ")
    write(source / "s0_latin.txt", "é", "latin-1")
    write(source / "s0_bad.TextGrid", "rubbish")
    write(source / "s0_other.eaf", eaf({}, tier("notes")))
    write(source / "s0_00.TextGrid", short_textgrid({"tx": [(0, 0.2, "leo")]}))
    recording(source / "s1_01.flac")
    recording(source / "film.mp4".replace("mp4", "wav")).rename(source / "film.mp4")
    data, faults = read_folder(source)
    assert {u.recording for u in data.utterances.values()} == {"s0_00", "s1_01", "s2_02"}
    assert {(fault.kind, Path(fault.where).name) for fault in faults} == {
        ("no transcript", "alone.wav"),
        ("no recording", "nobody.txt"),
        ("truncated audio", "s0_cut.wav"),
        ("unreadable transcript", "s0_latin.txt"),
        ("unreadable transcript", "s0_bad.TextGrid"),
        ("empty", "s0_empty.txt"),
        ("no such tier", "s0_other.eaf"),
        ("second transcript", "s0_00.txt"),
        ("second recording", "s1_01.wav"),
        ("format not read", "film.mp4"),
    }
    assert "left out 2 (unreadable transcript): s0_bad.TextGrid: is not a complete TextGrid; open it in Praat" in said(
        capsys
    )


def test_what_is_refused(tmp_path: Path) -> None:
    empty, source = tmp_path / "empty", tmp_path / "in"
    empty.mkdir()

    def refused(match: str, where: Path = source, **options: str) -> None:
        with pytest.raises(Speech3Error, match=match):
            prepare(where, tmp_path / "out", 1, lexicon="graphemes", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    refused(r"empty: neither a Kaldi data directory.*nor a folder of recordings", empty)
    recording(source / "a.wav")
    write(source / "b.TextGrid", "rubbish")
    refused(r"recordings: 1, transcripts: 1, but no names match.*such as a\.TextGrid beside a\.wav")
    write(source / "metadata.csv", "c|leo|leo")
    refused(r"no names match.*metadata\.csv")
    (source / "b.TextGrid").rename(source / "a.TextGrid")
    refused(r"no utterance is left of 1 recordings\n.*a\.TextGrid: is not a complete TextGrid")
    refused(
        r"tier=tx: there is no transcript with tiers \(\.TextGrid, \.eaf, \.srt, \.vtt\) that could be read", tier="tx"
    )
    (source / "a.TextGrid").unlink()
    write(source / "a.txt", "leo")
    refused(r"1 utterance \(2 s\): too few to hold out dev and test.*at least 7 utterances.*ten minutes of speech")
    recording(source / "b.wav", channels=2)
    recording(source / "c.wav", rate_hz=44100)
    for name in "bc":
        write(source / f"{name}.txt", "leo")
    refused(
        r"the same rate, and one channel: 2 of 8000 Hz, 1 of 44100 Hz, 1 with several channels; set sample_rate=8000"
    )


def test_one_speaker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    for number in range(20):
        recording(source / f"kofi_{number}.wav", 0.2)
        write(source / f"kofi_{number}.txt", "mama anasoma kitabu leo")
    prepare(source, tmp_path / "out", 1, lexicon="graphemes")
    assert [len(read_datadir(tmp_path / "out" / part).utterances) for part in ("train", "dev", "test")] == [14, 3, 3]
    told = said(capsys)
    assert "1 speaker, from the recordings' names" in told
    assert "1 speaker, where 8 are needed to hold some out" in told and "expect more errors on new speakers" in told


def test_all_words_of_test_are_new_and_scripts_are_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    corpus(source / "train", words="mama anasoma kitabu leo")
    corpus(source / "dev", 3, words="leo kitabu anasoma mama")
    corpus(source / "test", 3, words="kiwi tunda")
    write(source / "train" / "s0_00.txt", "mаma leo")  # its second letter is Cyrillic
    prepare(source, tmp_path / "out", 1, lexicon="graphemes")
    told = said(capsys)
    assert "test: 6 of 6 words (100.0%) are outside the vocabulary and can only be spelled (lm.letters)" in told
    assert "in several scripts, Latin (873 letters) and Cyrillic: 1 letter, as in mаma; letters that look alike" in told
    assert "letters with fewer than 5 occurrences in train are treated as others: а as a" in told


def test_the_recipe_takes_a_folder(tmp_path: Path, speech3) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "in"
    for number in range(40):
        recording(source / f"s{number % 10}_{number}.wav", 0.2, rate_hz=16000 if number % 2 else 8000)
        write(
            source / f"s{number % 10}_{number}.TextGrid",
            short_textgrid({"sentence": [(0, 0.2, "ngoma")], "gloss": [(0, 0.2, "drum")]}, 0.2),
        )
    write(tmp_path / "graphemes.txt", "ng\n")
    (source / "dead.aiff").symlink_to(tmp_path / "unmounted.aiff")
    done = speech3("recipe", "any", "--source", source, "--out", source / "out", "lexicon=graphemes")
    assert done.returncode == 1 and "so every run would change its own input and start again" in done.stderr
    command = ("recipe", "any", "--source", source, "--out", tmp_path / "out", "lexicon=graphemes", "--to", "data")
    done = speech3(*command, "--dry-run")
    assert done.returncode == 0 and "speech: about 0.00222 h in --source" in done.stdout
    assert "20 of 16000 Hz" in done.stderr
    done = speech3(*command)
    assert done.returncode == 1 and "several tiers could hold the transcript" in done.stderr
    assert "Traceback" not in done.stderr
    done = speech3(*command, "tier=sentence")
    assert done.returncode == 1 and "set sample_rate=8000 to convert them" in done.stderr
    done = speech3(*command, "tier=sentence", "sample_rate=8000", f"graphemes={tmp_path / 'graphemes.txt'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "data" / "lexicon.txt").read_text() == "<unk> SPN\nngoma ng o m a\n"
    done = speech3(*command, "tier=gloss", "sample_rate=8000", "--dry-run")
    assert "data/corpus: would run (tier sentence -> gloss, graphemes /" in done.stdout
    write(tmp_path / "graphemes.txt", "ng\nom\n")  # changed: the stage runs again
    done = speech3(*command, "tier=sentence", "sample_rate=8000", f"graphemes={tmp_path / 'graphemes.txt'}")
    assert (tmp_path / "out" / "data" / "lexicon.txt").read_text() == "<unk> SPN\nngoma ng om a\n"
    done = speech3("recipe", "yesno", "--source", source, "--out", tmp_path / "yesno", "tier=x")
    assert done.returncode == 1 and "tier=x: the corpus yesno does not use it; remove it" in done.stderr


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    source, graphemes = tmp_path / "kaldi", tmp_path / "graphemes.txt"
    for number in range(10):
        recording(source / f"u{number}.wav", 0.2)
    names = [f"u{number}" for number in range(10)]
    write(source / "wav.scp", "".join(f"{name} {source / name}.wav\n" for name in names))
    write(source / "text", "".join(f"{name} leo\n" for name in names))
    write(source / "utt2spk", "".join(f"{name} {name}\n" for name in names))
    with pytest.raises(Speech3Error, match="tier=tx: Kaldi data directories have no tiers; remove it"):
        prepare(source, tmp_path / "out", 1, lexicon="graphemes", tier="tx")
    with pytest.raises(SettingError, match=r"graphemes.txt"):
        prepare(source, tmp_path / "out", 1, lang="sw", graphemes=str(graphemes))
    with pytest.raises(MissingError, match=r"graphemes.txt"):
        prepare(source, tmp_path / "out", 1, lexicon="graphemes", graphemes=str(graphemes))
    graphemes.write_text("\n")
    with pytest.raises(Speech3Error, match=r"graphemes.txt: is empty"):
        prepare(source, tmp_path / "out", 1, lexicon="graphemes", graphemes=str(graphemes))


def test_words_of_dev_and_test_alone_are_spelled_to_align_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    corpus(source / "train", words="mama anasoma kitabu leo")
    corpus(source / "dev", 3, words="kiosk mama")
    corpus(source / "test", 3, words="tumbili 2 ɓuku")  # train has no ɓ
    prepare(source, tmp_path / "out", 1, lexicon="graphemes")
    spelled = "kiosk k i o s k\ntumbili t u m b i l i\nɓuku b u k u\n"
    assert (tmp_path / "out" / "held_out_lexicon.txt").read_text() == spelled
    assert "kiosk" not in (tmp_path / "out" / "lexicon.txt").read_text() + (tmp_path / "out" / "lm_text").read_text()
