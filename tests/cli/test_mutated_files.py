"""Mutated files into every reader: a value or a `Speech3Error`, at once; never another exception, never a hang.

Seeds are the files of a finished recipe and small files written here. Mutations are drawn from a fixed seed: flipped,
removed, repeated and inserted bytes and lines, truncation, zeros, other encodings, columns that are swapped or missing,
numbers that are huge, negative or not finite, another file's content.
"""

import gzip
import math
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import soundfile

from speech3.config import RecipeConfig, TrainConfig, load_config
from speech3.corpora.folder import read_folder
from speech3.corpora.tiers import read_elan, read_subtitles, read_textgrid
from speech3.data.audio import info, read_file
from speech3.data.datadir import parse
from speech3.errors import Speech3Error
from speech3.hmm.alignment.times import read_ctm

RECIPE = Path(__file__).parents[2] / "recipes" / "digits" / "recipe.yaml"
LIMIT_S = 10  # for one reading; all but networks take milliseconds
MUTATIONS = 8  # of each file; with --all (slow tests) many more
MANY = 100
ODD = ("nan", "inf", "-1", "1e99", "0", "-0.5", "99999999999999999999", "", "\t", "\x00", "é", "<eps>", "#0", "<s>")


def mutated(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """One of the mutations."""
    lines, place = content.splitlines(keepends=True), draw.randrange(len(content)) if content else 0
    size = draw.choice((1, 2, 7, 64, 1000))

    def in_a_line(change: Callable[[list[bytes]], list[bytes]]) -> bytes:
        number = draw.randrange(len(lines))
        fields = change(lines[number].split(b" "))
        return b"".join([*lines[:number], b" ".join(fields), *lines[number + 1 :]])

    def replaced(fields: list[bytes]) -> list[bytes]:
        fields[draw.randrange(len(fields))] = draw.choice(ODD).encode()
        return fields

    match draw.randrange(16):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + content[place + size :]
        case 2:
            return content[:place] + draw.randbytes(size) + content[place:]
        case 3:
            return content[:place] + draw.randbytes(min(size, len(content) - place)) + content[place + size :]
        case 4:
            return content[:place] + bytes(min(size, len(content) - place)) + content[place + size :]
        case 5:
            return content[:place] + content[max(0, place - size) :]
        case 6:
            return bytes([content[0] ^ (1 << draw.randrange(8)), *content[1:]]) if content else b"\0"
        case 7:
            flipped = bytearray(content)
            for _ in range(draw.choice((1, 3, 20)) if content else 0):
                flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
            return bytes(flipped)
        case 8 if lines:
            return in_a_line(replaced)
        case 9 if lines:
            return in_a_line(lambda fields: fields[1:])
        case 10 if lines:
            return in_a_line(lambda fields: [*fields, *fields])
        case 11 if lines:
            draw.shuffle(lines)
            return b"".join(lines)
        case 12:
            encoding = draw.choice(("utf-16", "utf-8-sig", "latin-1", "utf-32"))
            return content.decode(errors="replace").encode(encoding, "replace")
        case 13:
            return gzip.compress(content)
        case 14:
            return other
    return draw.choice((b"", b"\n", content + content, content.replace(b"\n", b"\r\n"), content.replace(b" ", b"\t")))


@contextmanager
def at_once() -> Iterator[None]:
    """Raise an error in what takes too long."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not read within {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Reader = Callable[[Path], Any]


def consumed(read: Callable[..., Any]) -> Reader:
    """Read all that an iterator yields."""
    return lambda path: [item for item in read(path)]


def finite(read: Reader) -> Reader:
    """A number that is read is a number."""

    def check(path: Path) -> Any:
        value = read(path)
        assert not isinstance(value, float) or math.isfinite(value)
        return value

    return check


def within(file: str, read: Reader) -> Reader:
    """Read a file of a directory."""
    return lambda directory: read(directory / file)


def speech(seconds: float = 0.4) -> np.ndarray:
    random_ = np.random.default_rng(1)
    return (0.1 * random_.standard_normal(int(8000 * seconds))).astype(np.float32)


TEXTGRID = """File type = "ooTextFile"
Object class = "TextGrid"

0
2
<exists>
1
"IntervalTier"
"words"
0
2
2
0
1.5
"one two"
1.5
2
""
"""
TRAIN = "frames: a\nhmm: b\nmodel: {family: dnn, width: 64}\ntraining: sgd\n"
VTT = """WEBVTT

a
00:00.500 --> 00:02.000 line:0
<v Anna>Good <00:01.000>morning</v>

00:02.000 --> 01:00:04.250
Fine.
"""
ELAN = """<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT AUTHOR="" FORMAT="3.0" VERSION="3.0"><HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"/>
<TIME_ORDER><TIME_SLOT TIME_SLOT_ID="t1" TIME_VALUE="0"/><TIME_SLOT TIME_SLOT_ID="t2" TIME_VALUE="900"/></TIME_ORDER>
<TIER LINGUISTIC_TYPE_REF="default-lt" TIER_ID="words"><ANNOTATION>
<ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="t1" TIME_SLOT_REF2="t2">
<ANNOTATION_VALUE>one two</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER></ANNOTATION_DOCUMENT>
"""


TABLES = {
    "metadata.csv": 'file_name,speaker,transcription\ns0.wav,ann,"one, two"\ns1.wav,ann,three <b>four</b>\n'
    "s2.wav,bob,Bob: five\n",
    "lj.csv": "s0|1 two|one two\ns1|3 four|three four\ns2|five|five\n",
    "manifest.jsonl": '{"audio_filepath": "s0.wav", "text": "one two"}\n'
    '{"audio_filepath": "s1.wav", "text": "three"}\n',
    "train.tsv": "path\tsentence\ns0.wav\tone two (laughs)\ns1.wav\t*sighs* three\ns2.wav\tfour [00:01] five\n",
}


def audio_seeds(root: Path) -> dict[str, Path]:
    """The same sound in each format that libsndfile writes."""
    found = {}
    for name, options in (
        ("a.wav", {"subtype": "PCM_16"}),
        ("float.wav", {"subtype": "FLOAT"}),
        ("a.flac", {}),
        ("a.ogg", {}),
        ("a.mp3", {}),
        ("a.aiff", {}),
        ("a.au", {}),
        ("a.w64", {}),
        ("a.sph", {"format": "NIST"}),
        ("mu.wav", {"subtype": "ULAW"}),
        ("rf64.wav", {"format": "RF64", "subtype": "PCM_16"}),
    ):
        try:
            soundfile.write(root / name, speech(), 8000, **options)
        except (soundfile.LibsndfileError, ValueError, TypeError):
            continue
        found[name] = root / name
    return found


def text_seeds(root: Path) -> dict[str, tuple[Path, Reader]]:
    """Small text files and their readers."""
    from speech3.data.subsets import read_list
    from speech3.data.transcripts import read_lines
    from speech3.decode.hot_words import read_hot
    from speech3.evaluate.text import read_all
    from speech3.language.added_words import read_added
    from speech3.language.arpa import read_arpa
    from speech3.language.grammar import read_jsgf, read_sentences
    from speech3.language.graphemes import read_graphemes
    from speech3.language.lexicon import read_dictionary, read_lexicon
    from speech3.language.train_lm import read_words
    from speech3.runtime import read_metrics
    from speech3.runtime.files import read_json

    arpa = (
        "\\data\\\nngram 1=4\nngram 2=3\n\n\\1-grams:\n-1.2 <s> -0.3\n-0.9 </s>\n-0.5 a -0.2\n-0.7 b -0.1\n\n"
        "\\2-grams:\n-0.2 <s> a\n-0.4 a b\n-0.3 b </s>\n\n\\end\\\n"
    )
    texts: dict[str, tuple[str, Reader]] = {
        "lexiconp.txt": ("<eps> 1.0 SIL\na 1.0 AH0 T\nb 0.5 B IY1\nb 0.5 B EH1 T\n", read_lexicon),
        "slashes.txt": ("a /AH T/\nb /B IY/\nbet\t[B EH T]\n", read_dictionary),
        "cmudict.dict": ("a AH T\nb B IY\nb(2) B EH T\n", read_dictionary),
        "lm.arpa": (arpa, read_arpa),
        "text.txt": ("a b a\nb a\na\n" * 5, consumed(lambda path: read_lines([path]))),
        "words.txt": ("a\nb\nc\n", read_words),
        "list.txt": ("u1\nu2\n", read_list),
        "sentences.txt": ("turn on the light\nturn off\n", read_sentences),
        "hot.txt": ("a 2.0\nb 1\n", read_hot),
        "added.txt": ("word W ER D\nother\n", read_added),
        "graphemes.txt": ("a\nb\nch\n", read_graphemes),
        "grammar.jsgf": ("#JSGF V1.0;\ngrammar g;\npublic <x> = turn (on | off) [the light];\n", read_jsgf),
        "a.ctm": ("u1 1 0.00 0.30 a 0.9\nu1 1 0.30 0.25 b\n", read_ctm),
        "hyp.txt": ("u1 a b\nu2 b\nu3 a a\n", lambda path: read_all([path, path])),
        "metrics.jsonl": ('{"event": "epoch", "epoch": 1, "loss": 2.5}\n' * 3, read_metrics),
        "a.json": ('{"a": [1, 2.5, "x"], "b": null}\n', read_json),
        "a.TextGrid": (TEXTGRID, read_textgrid),
        "a.eaf": (ELAN, read_elan),
        "a.vtt": (VTT, read_subtitles),
        "recipe.yaml": (RECIPE.read_text(), lambda path: load_config(RecipeConfig, path)),
        "train.yaml": (TRAIN, lambda path: load_config(TrainConfig, path)),
    }
    found = {}
    for name, (text, read) in texts.items():
        (root / name).write_text(text)
        found[name] = (root / name, read)
    return found


def model_seeds(root: Path, experiment: Path) -> dict[str, tuple[Path, str, Reader]]:
    """Directories of which one file is mutated: directory, file, reader of the directory."""
    from speech3.decode.graph import load_graph
    from speech3.decode.recognizer import load_recognizer
    from speech3.hmm.gmm import load_gmm
    from speech3.hmm.kaldi.convert import export_kaldi
    from speech3.hmm.kaldi.model import read_symbols, read_transition_model, read_tree
    from speech3.hmm.model import load_hmm
    from speech3.models.registry import load_network

    kaldi = root / "kaldi"
    export_kaldi(load_hmm(experiment / "tri"), kaldi)
    found: dict[str, tuple[Path, str, Reader]] = {}
    for file in ("hmm.json", "lexiconp.txt", "tree.safetensors"):
        found[f"tri/{file}"] = (experiment / "tri", file, load_hmm)
    found["tri/model.safetensors"] = (
        experiment / "tri",
        "model.safetensors",
        lambda d: load_gmm(d / "model.safetensors"),
    )
    found["dnn/model.safetensors"] = (experiment / "dnn", "model.safetensors", load_network)
    for file in ("features.yaml", "tuning.json", "decode.json"):
        found[f"dnn/{file}"] = (experiment / "dnn", file, load_recognizer)
    for path in sorted((experiment / "tri" / "graph").iterdir()):
        if path.is_file():
            found[f"graph/{path.name}"] = (experiment / "tri" / "graph", path.name, load_graph)
    for file, reader in (("tree", read_tree), ("final.mdl", read_transition_model), ("phones.txt", read_symbols)):
        found[f"kaldi/{file}"] = (kaldi, file, within(file, reader))
    for file in ("text", "wav.scp", "utt2spk", "segments", "spk2gender"):
        if (experiment / "data" / "test" / file).exists():
            found[f"data/{file}"] = (experiment / "data" / "test", file, parse)
    return found


def archive_seeds(root: Path) -> dict[str, tuple[Path, Reader]]:
    """Archives of features and alignments, with and without compression, an index, packed frames."""
    from speech3.decode.lattice_archive import read_lattices, write_lattices
    from speech3.frames.packed import open_packed, write_frames
    from speech3.io.ark import ArkReader, read_int_ark, write_ark

    draw = np.random.default_rng(1)
    feats = {f"u{number}": draw.standard_normal((20 + number, 5)).astype(np.float32) for number in range(3)}
    labels = {name: draw.integers(7, size=len(each)).astype(np.int32) for name, each in feats.items()}

    def matrices(scp: Path) -> None:
        reader = ArkReader(scp)
        for key in reader:
            np.asarray(reader[key])

    found: dict[str, tuple[Path, Reader]] = {}
    for name, compress in (("feats", False), ("compressed", True)):
        ark, scp = root / f"{name}.ark", root / f"{name}.scp"
        write_ark(ark, feats.items(), scp, compress=compress)
        found[ark.name] = (ark, lambda _, scp=scp: matrices(scp))  # type: ignore[misc]
        found[scp.name] = (scp, matrices)
    write_ark(root / "ali.ark", labels.items())
    found["ali.ark"] = (root / "ali.ark", read_int_ark)
    (root / "lat.txt").write_text("u1 \n0 1 3 4 1.0,2.0\n0 1 2 5 1.5,2.5\n1 2 3 0 0.1,0.7\n2 0.0,0.0\n\n")
    write_lattices(root / "lat.ark", list(read_lattices(root / "lat.txt")))
    for name in ("lat.txt", "lat.ark"):
        found[name] = (root / name, consumed(read_lattices))
    write_frames(root / "a.frames", feats, labels, 7, utterances=list(feats))
    found["a.frames"] = (root / "a.frames", lambda path: open_packed(path).verify())
    return found


def check(name: str, read: Reader, path: Path, what: str, failures: list[str]) -> None:
    """One reading."""
    try:
        with at_once(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except Speech3Error:
        return
    except (Exception, MemoryError) as error:
        failures.append(f"{name}, {what}: {type(error).__name__}: {str(error)[:150]}")


def run_all(seeds: dict[str, tuple[Path, Path, Reader]], count: int, seed: int) -> list[str]:
    """Mutate each file `count` times: of each seed the file, what is read (it or its directory), and the reader."""
    failures: list[str] = []
    contents = {name: file.read_bytes() for name, (file, _, _) in seeds.items()}
    for name, (file, target, read) in seeds.items():
        read(target)
        draw = random.Random(f"{seed}:{name}")
        for number in range(count):
            file.write_bytes(mutated(contents[name], contents[draw.choice(list(contents))], draw))
            check(name, read, target, f"mutation {number}", failures)
        file.write_bytes(contents[name])
    return failures


def all_seeds(root: Path, experiment: Path) -> dict[str, tuple[Path, Path, Reader]]:
    """Copies of all files, each with what is read."""
    seeds: dict[str, tuple[Path, Path, Reader]] = {}
    for name, path in audio_seeds(root).items():
        seeds[name] = (path, path, read_file)
        seeds[f"{name}, header"] = (path, path, info)
    for name, (path, read) in text_seeds(root).items():
        seeds[name] = (path, path, finite(read))
    for name, (directory, file, read) in model_seeds(root, experiment).items():
        copy = root / name.replace("/", "_")
        shutil.copytree(directory, copy, symlinks=True, ignore=shutil.ignore_patterns("checkpoints", "align", "wav"))
        seeds[name] = (copy / file, copy, read)
    for name, (path, read) in archive_seeds(root).items():
        seeds[name] = (path, path, read)
    folder = root / "folder"
    folder.mkdir()
    for number in range(3):
        soundfile.write(folder / f"s{number}.wav", speech(), 8000)
        (folder / f"s{number}.txt").write_text("one two three\n")
    for file in ("s0.txt", "s1.wav"):
        seeds[f"folder/{file}"] = (folder / file, folder, read_folder)
    for table, text in TABLES.items():
        beside = root / f"beside {table}"
        beside.mkdir()
        for number in range(3):
            soundfile.write(beside / f"s{number}.wav", speech(), 8000)
        (beside / table).write_text(text)
        seeds[f"beside/{table}"] = (beside / table, beside, read_folder)
    return seeds


def test_some_mutations_of_every_file(tmp_path: Path, experiment: Path) -> None:
    seeds = all_seeds(tmp_path, experiment)
    assert len(seeds) > 40
    failures = run_all(seeds, MUTATIONS, 1)
    assert not failures, "\n".join(failures)


@pytest.mark.slow
def test_many_mutations_of_every_file(tmp_path: Path, experiment: Path) -> None:
    seeds = all_seeds(tmp_path, experiment)
    assert len(seeds) * MANY > 3000
    failures = run_all(seeds, MANY, 2)
    assert not failures, "\n".join(failures)
