"""The verbs of data directories: `validate`, `fix`, `stats`, `subset`, `combine`, `speakers`, `split`, `augment`,
`extract`."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from speech3.cli import _verb
from speech3.errors import OccupiedError, SettingError, counted
from speech3.io import FEATURES_FILE
from speech3.runtime import check_output

_CONVERTED = ("several channels", "other sample rate")  # kinds of faults that no recording of a folder need be free of
_SHOWN = 20  # most faults and most warnings that are printed without --all


def validate(
    directory: _verb.Speech,
    jobs: Annotated[int, typer.Option(help="Number of processes that read the audio; 0: one per core.", min=0)] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Print all faults, not only 20.")] = False,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Do not require transcripts (for data that is only decoded).")
    ] = False,
    features: Annotated[
        Path | None, typer.Option(help="Archives to look at in place of those of the directory's feats.scp.")
    ] = None,
    tier: _verb.Tier = None,
) -> None:
    """List the faults of a data directory: file, utterance, what is wrong and what to do.

    `speech3 validate data/train`

    The exit status is 1 if there is a fault. At most 20 faults are printed, of each kind at least one, and then their
    number; `--all` prints all. The text files may be in any order. The audio is read completely, so that truncated
    files are found, and those that lost a byte. If a header gives a wrong length, the audio in the file is read, with a
    warning that has both lengths. The features of `feats.scp` or of the `--features` file are read as well: their
    offsets, values that are not numbers, sizes, and numbers of frames that do not fit the recordings. Warnings (such as
    digital silence) do not count as faults. `speech3 fix` writes a copy without the faults.
    """
    from tempfile import TemporaryDirectory

    from speech3.corpora import is_folder, read_speech
    from speech3.data import IN_FOLDERS, some_of_each_kind, validate, write_datadir

    scratch = ""
    if tier or is_folder(directory):  # `read_speech` refuses a tier where there are none
        with TemporaryDirectory(prefix="speech3-") as scratch:  # the folder as a data directory
            data, found = read_speech(directory, tier, transcribed=not no_text)
            if no_text:
                data = replace(data, utterances={k: replace(u, text=None) for k, u in data.utterances.items()})
            write_datadir(data, Path(scratch))
            report = validate(scratch, jobs=jobs, need_text=not no_text, features=features)
        left_out = [fault for fault in found if not fault.warning]
        read = (replace(f, remedy=IN_FOLDERS) if f.kind in _CONVERTED else f for f in report.faults)
        warnings = [fault for fault in found if fault.warning]
        report = replace(report, faults=(*left_out, *read), warnings=(*warnings, *report.warnings))
    else:
        report = validate(directory, jobs=jobs, need_text=not no_text, features=features)
    for faults, what in ((report.warnings, "warnings"), (report.faults, "faults")):
        shown = faults if everything else some_of_each_kind(faults, _SHOWN)
        for fault in shown:
            typer.echo(str(fault).replace(scratch or str(directory), str(directory)))
        if len(shown) < len(faults):
            typer.echo(f"... and {len(faults) - len(shown)} more {what}; --all prints all {len(faults)}")
    summary = report.summary()
    typer.echo(summary.partition("; `speech3 fix")[0].replace(scratch, str(directory)) if scratch else summary)
    if report.faults:
        raise typer.Exit(1)


def fix(
    directory: _verb.DataDir,
    out: _verb.NewDataDir,
    jobs: Annotated[int, typer.Option(help="Number of processes that read the audio; 0: one per core.", min=0)] = 0,
) -> None:
    """Write a repaired copy of a data directory and print what was removed and changed.

    `speech3 fix data/train data/train_fixed`

    Utterances that cannot be used (bad audio, no transcript, a different sample rate, several channels) are left out,
    segments are clipped to their recording, an utterance without a speaker becomes its own speaker, and of two lines
    with the same id the first is kept. The audio stays where it is, except that 16-bit PCM which lost single bytes in
    a transfer in text mode gets a mended copy in OUT/mended. `speech3 validate OUT` then finds no fault, or only that
    there is no `text`.
    """
    from speech3.data import fix_datadir

    repaired = fix_datadir(directory, out, jobs=jobs)
    for line in (*repaired.warnings, *repaired.changes):
        typer.echo(str(line))
    removed = f": {' '.join(repaired.removed)}" if repaired.removed else ""
    typer.echo(f"removed {counted(len(repaired.removed), 'utterance')}{removed}")
    typer.echo(
        f"{out}: {counted(len(repaired.data.utterances), 'utterance')},"
        f" {counted(len(repaired.data.speakers()), 'speaker')}"
    )


def stats(
    directory: _verb.Speech,
    lexicon: Annotated[Path | None, typer.Option(help="Lexicon; words that it lacks are counted.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write stats.json, stats.png and oov.txt to this directory.")
    ] = None,
    tier: _verb.Tier = None,
    as_json: _verb.Json = False,
) -> None:
    """Print hours, speakers, sample rates, words and out-of-vocabulary words of a data directory.

    `speech3 stats data/train --lexicon data/lexicon.txt --out exp/stats`

    Only the headers of the audio are read. `stats.png` shows the distributions of the lengths of utterances and of the
    amount of speech per speaker; `oov.txt` lists the words that the lexicon lacks, the most frequent first.
    """
    from speech3.corpora import is_folder, read_speech
    from speech3.data import describe_corpus, measure_corpus, warn_of_problems
    from speech3.language import read_lexicon
    from speech3.recipe import TextRules, in_vocabulary
    from speech3.runtime import write_json, write_text

    if out:
        files = ("stats.json", "stats.png", "oov.txt")
        check_output(out, [lexicon], files, marks=["stats.json"], option="--out ")
    words = read_lexicon(lexicon).by_word if lexicon else None
    data = read_speech(directory, tier)[0]
    if words and is_folder(directory):  # as everywhere, the words of a folder are in the spelling of the lexicon
        data = in_vocabulary(data, TextRules(given=True), words)
    stats = measure_corpus(data, words)
    print(json.dumps(stats.as_json(), indent=1, ensure_ascii=False) if as_json else describe_corpus(stats))
    warn_of_problems(stats)
    if out:
        from speech3.evaluate import write_histograms

        write_json(out / "stats.json", stats.as_json())
        write_histograms(stats, out / "stats.png")
        if stats.out_of_vocabulary:
            counts = stats.out_of_vocabulary.counts
            write_text(out / "oov.txt", "".join(f"{word} {count}\n" for word, count in counts.items()))


def subset(
    directory: _verb.DataDir,
    out: _verb.NewDataDir,
    speakers: Annotated[
        str | None, typer.Option(metavar="N|FILE", help="N speakers at random, or those listed in FILE.")
    ] = None,
    utterances: Annotated[
        str | None, typer.Option(metavar="N|FILE", help="N utterances at random, or those listed in FILE.")
    ] = None,
    per_speaker: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most N utterances of each speaker, at random.")
    ] = None,
    shortest: Annotated[int | None, typer.Option(metavar="N", min=1, help="The N shortest utterances.")] = None,
    first: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N utterances by name.")] = None,
    hours: Annotated[
        float | None, typer.Option(metavar="H", min=0, help="Utterances at random, as many as fit into H hours.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same subset.", min=0)] = 1,
) -> None:
    """Write a subset of a data directory: random or listed utterances or speakers, the shortest, or a number of hours.

    `speech3 subset data/train data/train_1h --hours 1`

    Options apply one after the other, in the order listed below: `--speakers 20 --hours 1` is an hour of speech by
    twenty speakers. A list has the names in its first column, so `text` and `utt2spk` files are lists of utterances.
    Audio and features stay where they are.
    """
    from speech3.data import check_new_datadir, read_datadir, read_list, subset, write_datadir

    def wanted(value: str | None) -> int | list[str] | None:
        return None if value is None else int(value) if value.isdecimal() else read_list(Path(value))

    if all(value is None for value in (speakers, utterances, per_speaker, shortest, first, hours)):
        raise SettingError(
            "nothing selects a subset: use --speakers, --utterances, --per-speaker, --shortest, --first or --hours"
        )
    data = read_datadir(directory)
    check_new_datadir(out, [data])
    part = subset(
        data,
        speakers=wanted(speakers),
        utterances=wanted(utterances),
        per_speaker=per_speaker,
        shortest=shortest,
        first=first,
        hours=hours,
        seed=seed,
    )
    write_datadir(part, out)
    typer.echo(
        f"{out}: {len(part.utterances)} of {len(data.utterances)} utterances,"
        f" {len(part.speakers())} of {len(data.speakers())} speakers"
    )


def combine(
    out: _verb.NewDataDir,
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Two or more Kaldi data directories.")],
) -> None:
    """Combine several data directories; audio and features stay where they are.

    `speech3 combine data/all data/clean data/other`

    No utterance may be in two of the directories. Transcripts, genders and features that one of them lacks are left
    out, with a note.
    """
    from speech3.data import check_new_datadir, combine, read_datadir, write_datadir

    sources = [read_datadir(directory) for directory in directories]
    try:
        check_new_datadir(out, sources)
    except OccupiedError as error:  # the output is easily taken for the last argument
        raise error.restated(f"{error}; name the output first: combine OUT DIR DIR") from error
    data, left_out = combine(sources, out)
    write_datadir(data, out)
    for line in left_out:
        typer.echo(line)
    typer.echo(f"{out}: {counted(len(data.utterances), 'utterance')}, {counted(len(data.speakers()), 'speaker')}")


def speakers(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of recordings or Kaldi data directory; needs no text.")
    ],
    model: Annotated[
        Path,
        typer.Option(
            metavar="MODEL", help="Model that adapts to speakers: exp/minilibri/sat.", autocompletion=_verb.models
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Data directory to write; default: DIR_speakers.")
    ] = None,
    number: Annotated[int | None, typer.Option(metavar="N", help="Find at most N speakers.", min=1)] = None,
    jobs: Annotated[int, typer.Option(help="Number of processes and threads; 0: one per core.", min=0)] = 0,
) -> None:
    """Group utterances by speaker where nobody knows who speaks, and write a data directory that says so.

    `speech3 speakers data/calls --model exp/minilibri/sat`

    `speech3 decode exp/minilibri/sat data/calls_speakers exp/calls`

    Each utterance is recognised in one pass and compared with the others by the transform that would adapt the model to
    its speaker. Utterances of a few words tell little, and may be grouped wrongly. What DIR/utt2spk says is not used.
    """
    from speech3.corpora import read_speech
    from speech3.data import check_new_datadir, write_datadir
    from speech3.decode import find_speakers, load_recognizer
    from speech3.runtime import available_jobs

    out = out or directory.with_name(f"{directory.resolve().name}_speakers")
    data = read_speech(directory, transcribed=False)[0]
    check_new_datadir(out, [data])
    found = find_speakers(load_recognizer(model), data, jobs or available_jobs(), number)
    utterances = {key: replace(data.utterances[key], speaker=speaker, gender=None) for key, speaker in found.items()}
    write_datadir(replace(data, utterances=utterances, cmvn={}), out)
    typer.echo(f"{out}: {counted(len(found), 'utterance')}, {counted(len(set(found.values())), 'speaker')}")


class By(StrEnum):
    """What is kept within one part."""

    speaker = "speaker"
    utterance = "utterance"


def split(
    directory: _verb.DataDir,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output directory; each part is written to OUT/PART.")],
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART=SHARE", help="Parts and their shares, or a number N: equal parts 1 to N."),
    ] = None,
    by: Annotated[By, typer.Option(help="Keep each speaker, or only each utterance, in one part.")] = By.speaker,
    seed: Annotated[int, typer.Option(help="The same seed draws the same split.", min=0)] = 1,
) -> None:
    """Split a data directory into parts with given shares of the hours; by default no speaker is in two parts.

    `speech3 split data/all data train=0.8 dev=0.1 test=0.1`

    A recogniser tested on speakers that it was trained on looks better than it is, so a speaker stays in one part.
    The shares above are the default. `speech3 split data/all data/folds 5` makes five equal parts.
    """
    from speech3.data import (
        check_new_datadir,
        parse_shares,
        read_datadir,
        split_by_speaker,
        split_by_utterance,
        write_datadir,
    )

    shares = parse_shares(parts or ["train=0.8", "dev=0.1", "test=0.1"])
    data = read_datadir(directory)
    for name in shares:
        check_new_datadir(out / name, [data])
    made = (split_by_speaker if by is By.speaker else split_by_utterance)(data, shares, seed)
    for name, part in made.items():
        write_datadir(part, out / name)
    for name, part in made.items():
        typer.echo(
            f"{out / name}: {counted(len(part.utterances), 'utterance')}, {counted(len(part.speakers()), 'speaker')}"
        )


def augment(
    directory: _verb.DataDir,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Data directory to write; it holds only the copies.")],
    augment: Annotated[
        str, _verb.preset("augment", "Preset in conf/augment, or a YAML file (it may set noise_dir and rir_dir).")
    ],
    copies: Annotated[int, typer.Option(help="Copies of each utterance, all different.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="The same seed draws the same copies.", min=0)] = 1,
    jobs: _verb.Jobs = 0,
) -> None:
    """Write augmented copies: with noise, other speakers, reverberation, another speed or volume, or telephone quality.

    `speech3 augment data/train data/train_aug --augment mixed`

    To train on both, run `speech3 combine data/train_all data/train data/train_aug`. To make a noisy test set, run
    `speech3 augment data/test data/test_noisy --augment noisy`. `OUT/augment.txt` lists what was done to each copy.
    Noise and room impulse responses are synthesised unless the YAML file names directories of recordings:
    `noise_dir: /corpora/musan`, `rir_dir: /corpora/RIRS_NOISES`.
    """
    from speech3.config import AugmentConfig, load_preset
    from speech3.data import augment_data, check_new_datadir, read_datadir
    from speech3.decode import say_skipped

    config = load_preset(AugmentConfig, "augment", augment)
    data = read_datadir(directory)
    check_new_datadir(out, [data], "aug[0-9]+-")
    report = augment_data(data, out, config, copies=copies, seed=seed, jobs=jobs)
    say_skipped(report.skipped, "skipped")
    clean = sum(done == "clean" for done in report.done.values())
    print(f"{len(report.done)} copies, {clean} of them unchanged: {out}; changes are listed in {out / 'augment.txt'}")


def extract(
    directory: _verb.DataDir,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output directory: feats.ark, feats.scp and features.yaml.")
    ],
    features: Annotated[
        str,
        _verb.preset(
            "features", "Preset in conf/features, a YAML file, or Kaldi's conf/mfcc.conf, fbank.conf, plp.conf."
        ),
    ],
    jobs: _verb.Jobs = 0,
    compress: Annotated[
        bool, typer.Option("--compress", help="Kaldi's lossy compression: about one byte per value.")
    ] = False,
    augment: Annotated[
        str | None, _verb.preset("augment", "Augment the audio first: preset in conf/augment, or a YAML file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the augmentation.", min=0)] = 1,
) -> None:
    """Compute the features of all utterances of a data directory.

    `speech3 extract data/train feats/train --features fbank40_d2`

    The archive is in Kaldi's format (`copy-feats scp:feats/train/feats.scp ark,t:-` prints it) and holds the input of a
    model, to which the preset's CMVN and deltas have been applied. Utterances that cannot be used are listed in
    `OUT/skipped.txt`; it is an error if they are more than 5 %. The preset `given` takes the directory's own features
    (its `feats.scp`, for example fMLLR features); `given_cmvn` also normalises them with its `cmvn.scp`.

    If a run was interrupted or killed, run the same command again to resume it. The statistics of this directory are
    written to `OUT/features.yaml`. Pass that file as `--features` for data to be recognised: with `cmvn: global` they
    normalise these; with `speaker` or `utterance` they count as 0.2 s of each.

    `--augment mixed` adds noise, reverberation and so on to the audio in memory (`speech3 augment` writes such audio
    to files): `speech3 extract data/train feats/train_noisy --features fbank40_d2 --augment noisy`
    """
    from speech3.config import AugmentConfig, FeatureConfig, load_preset
    from speech3.data import make_augmenter, read_datadir
    from speech3.features import extract

    check_output(out, [Path(name) for name in (features, augment) if name and Path(name).is_file()], [FEATURES_FILE])
    config, data = load_preset(FeatureConfig, "features", features), read_datadir(directory)
    augmenter = make_augmenter(load_preset(AugmentConfig, "augment", augment), data, seed) if augment else None
    report = extract(data, out, config, jobs, compress=compress, augmenter=augmenter)
    hours = report.frames * config.frame_shift / 3.6e6
    rate = f" at {report.sample_rate_hz} Hz" if report.sample_rate_hz else ""
    typer.echo(
        f"{counted(report.utterances, 'utterance')}, {counted(report.frames, 'frame')} ({hours:.2f} h{rate}), "
        f"{report.values} values per frame: {out / 'feats.scp'}"
    )
    if report.skipped:
        typer.echo(f"{counted(len(report.skipped), 'utterance')} skipped: {out / 'skipped.txt'}")
