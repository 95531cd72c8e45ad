"""WSJ0 and WSJ1: read news, 16 kHz (LDC93S6A, LDC94S13A; Paul and Baker 1992).

https://catalog.ldc.upenn.edu/LDC93S6A, https://catalog.ldc.upenn.edu/LDC94S13A. The source is the discs, ``11-1.1`` to
``11-16.1`` and ``13-1.1`` to ``13-34.1``, each with a directory ``wsj0`` or ``wsj1``; or one ``wsj0`` and one ``wsj1``
with the files of all discs. Index files list the recordings of a set by disc: ``11_1_1:wsj0/si_tr_s/01t/01to030v.wv1``.

    wsj0/si_tr_s/01t/01to030v.wv1    NIST sphere of the head-mounted microphone, mostly compressed by shorten
    **/01to0300.dot                  transcripts of the session 01to03: lines ``The words. (01to030v)``

Language models are those distributed, in ``doc/lng_modl/base_lm``, or ARPA files beside the discs.
"""

import gzip
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speech3.corpora.anyspeech import SET_NAMES, say_if_incomplete, write_corpus
from speech3.data import DataDir, Utterance, entry_of_any_case, files_below, matching_paths
from speech3.errors import DataError, FormatError, MissingError, SettingError, counted
from speech3.language import LangDir, check_english, lexicon_text, read_dictionary
from speech3.runtime import atomic_path, numbered_lines, say, to_utf8, write_json, write_text

_SI84 = "wsj0/doc/indices/train/tr_s_wv1.ndx"
_NOT_ON_THE_DISC = "wsj0/si_tr_s/401/"  # SI-84's index lists it on disc 11-2.1, which lacks it
_DISC = re.compile(r"(1[13])[-_](\d+)[-_.](\d+)")
_LINE = re.compile(rf"{_DISC.pattern}\s*:\s*/?(\S+)")
_TRANSCRIPT = re.compile(r"(.*?)\s*\(([^()\s]+)\)")
_MODELS = ("wsj1/doc/lng_modl/base_lm", "wsj0/doc/lng_modl/base_lm")
_SUFFIXES = ("", ".z", ".Z", ".gz", ".arpa", ".arpa.gz")
_DICTIONARIES = ("cmudict.dict", "cmudict-0.7b", "cmudict.0.7a", "cmudict", "cmudict.txt")
_SPH2PIPE = "sph2pipe"


class Set(NamedTuple):
    """A set of recordings: its index files, the number of its utterances, and where it is distributed."""

    indices: tuple[str, ...]
    utterances: int
    part: str


SETS = {
    "si84": Set((_SI84,), 7138, "WSJ0"),
    "si284": Set((_SI84, "wsj1/doc/indices/si_tr_s.ndx"), 37416, "WSJ1"),
    "dev93": Set(("wsj1/doc/indices/h1_p0.ndx",), 503, "WSJ1"),
    "dev93_5k": Set(("wsj1/doc/indices/h2_p0.ndx",), 513, "WSJ1"),
    "eval92": Set(("wsj0/doc/indices/test/nvp/si_et_20.ndx",), 333, "WSJ0"),
    "eval92_5k": Set(("wsj0/doc/indices/test/nvp/si_et_05.ndx",), 330, "WSJ0"),
}


def prepare(
    source: Path,
    out: Path,
    seed: int,
    *,
    train: str = "",
    dev: str = "dev93",
    test: str = "eval92",
    model: str = "bcb20onp",
    lang: str | None = None,
) -> None:
    """See `speech3.corpora`; `source` holds the discs, or ``wsj0`` and ``wsj1``. The sets are official.

    `train`, `dev`, `test`: names in `SETS`; by default train is si284 if its index is there, else si84.
    `model`: a language model as distributed (bcb20onp, bcb05onp, tcb05cnp, ...), or the name of an ARPA file in
    `source`, such as lm_tgpr.
    `lang`: English, for words that CMUdict in `source` lacks, or for all words without CMUdict.

    Raises Speech3Error as every corpus, or if recordings are compressed by shorten and there is no sph2pipe.
    """
    check_english(lang, "WSJ")
    discs = _discs(source)
    train = train or ("si284" if discs.find(SETS["si284"].indices[-1]) else "si84")
    chosen = {"train": train, "dev": dev, "test": test}
    for key, name in chosen.items():
        if name not in SETS:
            raise SettingError(f"corpus_options.{key}={name}: unknown; choose from {', '.join(SETS)}")
    arpa, lists = _arpa(discs, model), {key: _listed(discs, name) for key, name in chosen.items()}
    transcripts = _transcripts(discs)
    parts = {key: _part(discs, chosen[key], listed, transcripts) for key, listed in lists.items()}
    dictionary = next((found for name in _DICTIONARIES if (found := entry_of_any_case(source, name))), None)
    say(f"  lexicon: {dictionary or 'by espeak-ng, as there is no cmudict beside the discs'}; language model: {arpa}")
    write_json(out / SET_NAMES, {"train": train, "test": test, "lm": model})
    lexicon = None
    if dictionary:
        lexicon = out / "cmudict.txt"
        entries = read_dictionary(dictionary)  # its words are in small letters in cmudict.dict
        write_text(lexicon, lexicon_text([(word.upper(), phones) for word, phones in entries]))
    write_corpus(parts, LangDir(lexicon, _readable(arpa, out / "given.arpa.gz"), None), out, lang=lang)


@dataclass(frozen=True)
class _Discs:
    """Directories with ``wsj0`` or ``wsj1``, by the name of the disc, or by path if they have another name."""

    source: Path
    roots: Mapping[str, Path]

    def find(self, name: str, disc: str = "") -> Path | None:
        """Path of a file on `disc`, or else on any disc, in upper or lower case; None if absent."""
        first = [self.roots[disc]] if disc in self.roots else []
        for root in (*first, *(root for root in self.roots.values() if root not in first)):
            path: Path | None = root
            for part in name.split("/"):
                path = entry_of_any_case(path, part) if path else None
            if path:
                return path
        return None


def _discs(source: Path) -> _Discs:
    roots: dict[str, Path] = {}
    for directory in (source, *matching_paths(source, "*/"), *matching_paths(source, "*/*/")):
        if directory.is_dir() and (entry_of_any_case(directory, "wsj0") or entry_of_any_case(directory, "wsj1")):
            match = _DISC.fullmatch(directory.name)
            roots["-".join((match[1], f"{match[2]}.{match[3]}")) if match else str(directory)] = directory
    if not roots:
        raise MissingError(
            f"{source}: not WSJ: no disc such as 11-1.1 or 13-34.1 with a directory wsj0 or wsj1 here or one or two"
            " directories below; they are LDC93S6A and LDC94S13A (https://catalog.ldc.upenn.edu/LDC93S6A)"
        )
    return _Discs(source, roots)


def _listed(discs: _Discs, name: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    missing: dict[str, list[str]] = {}
    for index in SETS[name].indices:
        path = discs.find(index)
        if path is None:
            part = "WSJ1 (LDC94S13A)" if index.startswith("wsj1") else "WSJ0 (LDC93S6A)"
            raise MissingError(
                f"{discs.source}: has no {index}, the index of {name}: copy the discs of {part} with doc/ there, or"
                " choose another set (corpus_options.train, dev, test)"
            )
        for where, line in numbered_lines(path):
            if line.startswith(";"):
                continue
            if not (match := _LINE.fullmatch(line.strip())):
                raise FormatError(f"{where}: not `DISC:FILE`, such as 11_1_1:wsj0/...: `{line[:60]}`")
            disc, file = f"{match[1]}-{match[2]}.{match[3]}", match[4].lower()
            if _NOT_ON_THE_DISC in file and disc == "11-2.1":
                continue
            file = file if file.endswith(".wv1") else f"{file}.wv1"
            if sound := discs.find(file, disc):
                found[sound.stem.lower()] = sound
            else:
                missing.setdefault(disc, []).append(file)
    if missing:
        listing = "; ".join(f"disc {d}: {len(files)}, such as {files[0]}" for d, files in sorted(missing.items()))
        raise MissingError(f"{discs.source}: {name} lacks recordings ({listing}): copy these discs there, too")
    say_if_incomplete(name, len(found), SETS[name].utterances)
    return dict(sorted(found.items()))


def _transcripts(discs: _Discs) -> dict[str, Path]:
    """Each session's file of transcripts, by the first six characters of its name and of its utterances' names."""
    roots = dict.fromkeys(discs.roots.values())
    paths = (path for root in roots for path in files_below(root) if path.suffix.lower() == ".dot")
    found = {path.name[:6].lower(): path for path in sorted(paths)}
    if not found:
        raise MissingError(f"{discs.source}: no transcripts *.dot on any disc: copy wsj0/transcrp and wsj1/trans, too")
    return found


def _part(discs: _Discs, name: str, sounds: Mapping[str, Path], transcripts: Mapping[str, Path]) -> DataDir:
    texts: dict[str, str] = {}
    for session in sorted({key[:6] for key in sounds}):
        if session in transcripts:
            texts |= _texts(transcripts[session])
    if lacking := [key for key in sounds if key not in texts]:
        raise MissingError(
            f"{discs.source}: {len(lacking)} of the {len(sounds)} utterances of {name} have no transcript, such as"
            f" {lacking[0]} ({lacking[0][:6]}00.dot): copy the disc with its *.dot there, too"
        )
    recordings = _recordings(name, sounds)
    utterances = {key: Utterance(key, key, key[:3], texts[key]) for key in sounds}
    if empty := [key for key in sounds if not texts[key]]:
        say(f"  {name}: left out: {counted(len(empty), 'utterance')} without words")
    kept = {key: utterance for key, utterance in utterances.items() if utterance.text}
    return DataDir(discs.source, {key: recordings[key] for key in kept}, kept)


def _texts(path: Path) -> dict[str, str]:
    found = {}
    for where, line in numbered_lines(path):
        if not (match := _TRANSCRIPT.fullmatch(line.strip())):
            raise FormatError(f"{where}: not `WORDS (UTTERANCE)`: `{line[:60]}`; copy the disc again")
        found[match[2].lower()] = normalized(match[1])
    return found


def normalized(transcript: str) -> str:
    """The words of a detailed transcript (.dot), in capitals, as the language models have them.

    ``\\`` quotes the next character; ``[noise]`` and the marks of lasting noises (``[<door]``, ``[door>]``,
    ``[door/]``, ``[/door]``), pauses ``.``, and truncation ``~`` are left out; of ``<word>`` (said, but not in the
    prompt), ``*word*`` (mispronounced), ``word!`` (emphasised) and ``wo:rd`` (lengthened), only the word is kept. The
    format is described in the file ``dot_spec.doc`` of the discs.
    """
    words = []
    for written in transcript.upper().split():
        word = written.replace("\\", "")
        if re.fullmatch(r"\[.*\]", word) or word in (".", "~"):
            continue
        word = word.strip("~")
        word = match[1] if (match := re.fullmatch(r"[<*](.+)[>*]", word)) else word
        if word[:1].isalpha():  # :COLON and !EXCLAMATION-POINT are words that were said
            word = word.replace(":", "").rstrip("!")
        words.append({"%PERCENT": "PERCENT", ".POINT": "POINT", "--DASH": "-DASH"}.get(word, word))
    return " ".join(words)


def _recordings(name: str, sounds: Mapping[str, Path]) -> dict[str, str]:
    compressed = {key for key, path in sounds.items() if _shortened(path)}
    program = shutil.which(_SPH2PIPE)
    if compressed and not program:
        some = sounds[min(compressed)]
        raise FormatError(
            f"{some}: compressed by shorten, as are {len(compressed):,} of the {len(sounds):,} recordings of {name};"
            " libsndfile, with which speech3 reads audio, cannot read that: put sph2pipe on your PATH"
            " (https://www.ldc.upenn.edu/language-resources/tools/sphere-conversion-tools), and speech3 will call it"
        )
    if compressed:
        say(f"  {name}: {len(compressed):,} recordings are compressed by shorten and read through {program}")
    return {
        key: f"{program} -f wav {shlex.quote(str(path.absolute()))} |" if key in compressed else str(path.absolute())
        for key, path in sounds.items()
    }


def _shortened(path: Path) -> bool:
    with path.open("rb") as stream:
        head = stream.read(1024)
    if not head.startswith((b"NIST_1A", b"RIFF")):
        raise DataError(f"{path}: neither a NIST sphere file nor wav; copy the disc again")
    return head.startswith(b"NIST_1A") and b"shorten" in head


def _arpa(discs: _Discs, model: str) -> Path:
    names = [f"{model}{suffix}" for suffix in _SUFFIXES]
    beside = (found for name in names if (found := entry_of_any_case(discs.source, name)) and found.is_file())
    on_disc = (found for place in _MODELS for name in names if (found := discs.find(f"{place}/{name}")))
    if path := next(beside, None) or next(on_disc, None):
        return path
    raise MissingError(
        f"{discs.source}: no language model {model} ({_MODELS[1]}/{model}.z of disc 11-13.1, or {_MODELS[0]}/{model}.z"
        f" of 13-32.1, or {model}.arpa.gz beside the discs): copy it there, or choose another: corpus_options.model"
    )


def _readable(arpa: Path, out: Path) -> Path:
    """Write the model to `out` as gzipped ARPA text, without what precedes its line ``\\data\\``."""
    content = arpa.read_bytes()
    if content[:2] in (b"\x1f\x9d", b"\x1f\x1e"):  # of compress or pack, which Python cannot read
        done = subprocess.run(["gzip", "-dc"], input=content, capture_output=True)
        if done.returncode:
            raise FormatError(f"{arpa}: cannot be uncompressed ({done.stderr.decode().strip()}); copy it again")
        content = done.stdout
    content, _ = to_utf8(content, arpa)
    place = re.search(rb"^\\data\\", content, re.MULTILINE)
    if not place:
        raise FormatError(f"{arpa}: not an ARPA language model: has no line \\data\\; copy it again")
    with atomic_path(out) as path:
        path.write_bytes(gzip.compress(content[place.start() :], mtime=0))
    return out
