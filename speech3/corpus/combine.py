"""Combine several data directories into one, as Kaldi's utils/combine_data.sh does."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speech3.corpus.datadir import DataDir
from speech3.corpus.paths import moved, moved_rspecifier
from speech3.errors import Speech3Error, listed


def combine(parts: Sequence[DataDir], out: Path) -> tuple[DataDir, list[str]]:
    """Combine the utterances of all `parts`; a speaker may be in several of them.

    Parameters
    ----------
    out
        Where the result will be written; its relative paths start there.

    Returns
    -------
    data, left_out
        `text`, `spk2gender`, `feats.scp`, `cmvn.scp` (and `wav.scp`, if there are features) are left out if one of the
        parts lacks them; `left_out` has a line for each file left out.

    Raises
    ------
    Speech3Error
        An utterance is in two parts; a recording is a different file in two parts, or a speaker has different genders;
        or some part lacks audio and some part lacks features.
    """
    _refuse_twice(parts)
    lacking = {
        "wav.scp": [data.path for data in parts if not data.recordings],
        "feats.scp": [data.path for data in parts if data.feats.keys() != data.utterances.keys()],
        "cmvn.scp": [data.path for data in parts if data.cmvn.keys() != data.speakers().keys()],
        "text": [data.path for data in parts if any(utt.text is None for utt in data.utterances.values())],
        "spk2gender": [data.path for data in parts if any(utt.gender is None for utt in data.utterances.values())],
    }
    if lacking["wav.scp"] and lacking["feats.scp"]:
        raise Speech3Error(
            f"{lacking['wav.scp'][0]} has no audio, and {lacking['feats.scp'][0]} lacks features of some utterances;"
            " all parts must have audio, or all must have features: extract the features first"
        )
    left_out = [
        f"{name} left out: missing or incomplete in {', '.join(map(str, without))}"
        for name, without in lacking.items()
        if without and len(without) < len(parts)
    ]
    recordings = [{key: moved(value, data.path, out) for key, value in data.recordings.items()} for data in parts]
    feats = [{key: moved_rspecifier(value, data.path, out) for key, value in data.feats.items()} for data in parts]
    cmvn = [{key: moved_rspecifier(value, data.path, out) for key, value in data.cmvn.items()} for data in parts]
    genders = [{utt.speaker: utt.gender or "" for utt in data.utterances.values()} for data in parts]
    if not lacking["spk2gender"]:
        _merged(parts, genders, "speaker")
    try:
        statistics = {} if lacking["cmvn.scp"] else _merged(parts, cmvn, "speaker")
    except Speech3Error as error:  # one part's statistics cover only some of the speaker's utterances
        statistics = {}
        left_out.append(f"cmvn.scp left out: {error}")
    utterances = {
        key: replace(
            utt, text=None if lacking["text"] else utt.text, gender=None if lacking["spk2gender"] else utt.gender
        )
        for data in parts
        for key, utt in data.utterances.items()
    }
    return DataDir(
        out,
        {} if lacking["wav.scp"] else _merged(parts, recordings, "recording"),
        dict(sorted(utterances.items())),
        {} if lacking["feats.scp"] else _merged(parts, feats, "utterance"),
        statistics,
    ), left_out


def _refuse_twice(parts: Sequence[DataDir]) -> None:
    if len(parts) < 2:
        raise Speech3Error("there is nothing to combine; give two or more data directories")
    seen: dict[str, Path] = {}
    twice: list[str] = []
    for data in parts:
        twice += [f"{key} ({seen[key]}, {data.path})" for key in data.utterances if key in seen]
        seen.update(dict.fromkeys(data.utterances, data.path))
    if twice:
        raise Speech3Error(
            f"{len(twice)} utterances are in two directories: {listed(twice)};"
            " remove them from one of the two with `speech3 subset`, or rename them"
        )


def _merged(parts: Sequence[DataDir], tables: Sequence[dict[str, str]], what: str) -> dict[str, str]:
    merged: dict[str, str] = {}
    origin: dict[str, Path] = {}
    for data, table in zip(parts, tables, strict=True):
        for key, value in table.items():
            if merged.setdefault(key, value) != value:
                raise Speech3Error(
                    f"{what} {key} is {merged[key]} in {origin[key]} and {value} in {data.path}; rename one of them"
                )
            origin.setdefault(key, data.path)
    return dict(sorted(merged.items()))
