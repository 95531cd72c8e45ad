"""The verbs that apply a model: `transcribe`, `decode`, `rescore`, `graph`, `align`, `tune`, `forward`, `export`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from speech3.cli import _verb
from speech3.errors import DataError, MismatchError, SettingError, Speech3Error, counted

_Graph = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Graph of `speech3 graph`, used in place of the model's.")
]
_Hot = Annotated[Path | None, typer.Option(help="Words to expect: lines `WORD [WORD ...] [BOOST]`.")]
_Doubt = Annotated[
    float, typer.Option(metavar="X", help="Write `<unk>` for words with a confidence below X (0 to 1).", min=0, max=1)
]
_Nbest = typer.Option(metavar="N", help="The N best word sequences.", min=0, max=10_000)
_Others = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="MODEL",
        autocompletion=_verb.models,
        help="Average the scores with those of another model; may be repeated.",
    ),
]


def transcribe(
    model: Annotated[Path, _verb.model("Model directory, or OUT.onnx of `speech3 export`.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="wav, flac, ogg, mp3 or NIST sphere; - is standard input.")
    ],
    ctm: Annotated[
        bool, typer.Option("--ctm", help="Print CTM: file, channel, start, duration, word, confidence.")
    ] = False,
    graph: _Graph = None,
    hot: _Hot = None,
    min_confidence: _Doubt = 0.0,
    others: _Others = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="FILE is `-` (standard input) or a file that is still being written.")
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(metavar="HZ", help="Standard input is raw audio of this rate; --stream: else the model's."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each file; with --stream, for each result.")
    ] = False,
    nbest: Annotated[int, _Nbest] = 0,
    textgrid: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write DIR/NAME.TextGrid for each recording.")
    ] = None,
    lattice: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write Kaldi lattices, as `speech3 decode --lattice`.")
    ] = None,
    one_speaker: Annotated[
        bool, typer.Option("--one-speaker", help="The files are of one speaker (for models that adapt to speakers).")
    ] = False,
) -> None:
    """Print the text of recordings: of one file the text alone, of several files a line `FILE text` each.

    `speech3 transcribe exp/digits/dnn hello.wav more.flac`

    Recordings with a different sample rate from the model's are resampled. Several channels become one: their average,
    unless some are silent or cancel each other, which is said. Recordings of more than a minute are cut at pauses. With
    `--ctm` every word is on its own line with its time in seconds. A model that adapts to speakers, such as
    `exp/digits/sat`, takes each file for one speaker, or all of them with `--one-speaker`. `--json` prints a line for
    each file: `{"file", "duration", "text", "words": [{"word", "start", "end", "confidence"}, ...]}`, times in seconds.
    Words that a model guesses (`lm.filler=spelled`) are `<word>` there, in CTMs and in TextGrids.

    With `--nbest N` there is a line for each word sequence, `RANK COST TEXT`, where the cost is a negative natural
    logarithm (neither confidences nor lengths of words are judged there); with `--json` they are in `nbest`, as `decode
    --nbest` writes them. The TextGrids have the names and the times of the recordings, and tiers of words and phones.
    `ffmpeg -i talk.m4a -f wav - | speech3 transcribe MODEL -` reads a sound file from standard input. Of several files,
    those that cannot be read are named at the end.

    `arecord -t raw -f S16_LE -c 1 -r 16000 | speech3 transcribe --stream exp/digits/dnn - --rate 16000`

    With `--stream`, raw audio (16 bits, little endian, one channel) or WAV is recognised while it arrives. A terminal
    shows the words so far on a line that is rewritten as they change; without a terminal, lines `partial WORDS` and
    `final WORDS` are printed. A pause of half a second ends a line. Ctrl-C ends the audio.
    """
    from contextlib import ExitStack
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from speech3.decode import (
        STANDARD_INPUT,
        Recognizer,
        Transcription,
        check_names,
        claim_results,
        load_recognizer,
        ranked_paths,
        same_features,
        save_standard_input,
        transcribe,
        transcribe_arriving,
        transcription_json,
        with_mean_scores,
        with_raw_samples,
        write_results,
    )
    from speech3.hmm import ctm_line

    # The recogniser.
    if ctm and (as_json or nbest):
        raise SettingError(
            "--ctm: cannot be combined with --json or --nbest; --json --nbest N has both times and N best"
        )
    if nbest and min_confidence and not as_json:
        raise SettingError("--min-confidence: word sequences of --nbest have no confidences; add --json, or omit one")
    if stream and others:
        raise SettingError("--with: cannot be combined with --stream")
    if stream and (len(files) != 1 or ctm or nbest or textgrid or lattice or one_speaker):
        raise SettingError(
            "--stream takes one FILE, or - for standard input, and no --ctm, --nbest, --textgrid, --lattice or"
            " --one-speaker"
        )
    if rate is not None and not stream and Path("-") not in files:
        raise SettingError("--rate is for standard input (- or --stream); a file contains its sample rate")
    if files.count(Path("-")) > 1:
        raise SettingError("- (standard input) can be read only once")
    recognizer = Recognizer.load(model, graph=graph, hot=hot, nbest=nbest, min_confidence=min_confidence)
    if others:
        more = [load_recognizer(other) for other in others]
        if differs := [other.directory for other in more if not same_features(recognizer, other)]:
            raise MismatchError(f"{differs[0]}: reads other features than {model}; use speech3 decode --with instead")
        recognizer = with_mean_scores(recognizer, more)
    # Audio that is still arriving, or finished files.
    if stream:
        transcribe_arriving(recognizer, str(files[0]), rate, as_json=as_json)
        return
    failed: list[Speech3Error] = []
    names: dict[Path, str] = {}

    def show(result: Transcription) -> None:
        result = replace(result, name="-") if result.name in names.values() else result
        several = f"{result.name} " if len(files) > 1 else ""
        if as_json:
            print(transcription_json(result))
        elif ctm:
            for word in result.words:
                print(ctm_line("_".join(result.name.split()), word))
        elif nbest:
            for path in ranked_paths(result.nbest):
                print(f"{several}{path['rank']} {path['cost']:.4f} {path['words']}".rstrip())
        else:
            print(f"{several}{result.text}".rstrip())

    with ExitStack() as stack:
        if Path("-") in files:
            saved = Path(stack.enter_context(TemporaryDirectory(prefix="speech3-"))) / f"{STANDARD_INPUT}.wav"
            save_standard_input(saved, rate)
            files = [saved if path == Path("-") else path for path in files]
            names[saved] = "standard input"
        if textgrid or lattice:
            check_names(files)
            claim_results(files, textgrid, lattice)
        wanted = {"times": ctm or as_json or bool(textgrid), "lattices": bool(lattice), "one_speaker": one_speaker}
        results = transcribe(recognizer, files, **wanted, names=names, failed=failed)
        write_results(results, show, recognizer, textgrid, lattice)
    if failed:
        several = f"could not recognise {len(failed)} of {len(files)} recordings:\n  " if len(files) > 1 else ""
        told = failed if rate is not None else list(map(with_raw_samples, failed))
        raise failed[0].restated(several + "\n  ".join(map(str, told)))


def decode(
    model: _verb.Model,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of recordings or Kaldi data directory; needs no text.")
    ],
    out: Annotated[Path, typer.Argument(help="Output directory: hyp.txt and hyp.ctm.")],
    nbest: Annotated[int, _Nbest] = 0,
    lattice: Annotated[bool, typer.Option("--lattice", help="Write Kaldi lattices: lat.ark, lat.scp.")] = False,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Write the words with the fewest expected errors (minimum Bayes risk).")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Number of processes and threads; 0: one per core.", min=0)] = 0,
    graph: _Graph = None,
    others: _Others = None,
    transforms: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Transforms of the speakers (trans.scp or Kaldi's trans.1, ...); not OUT."),
    ] = None,
    words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Adapt speakers to the words of another model's hyp.txt.")
    ] = None,
    hot: _Hot = None,
    min_confidence: _Doubt = 0.0,
) -> None:
    """Recognise every utterance, with the acoustic scale and word penalty that were tuned on the model's dev set.

    `speech3 decode exp/digits/dnn data/new exp/new && speech3 score data/new/text exp/new/hyp.txt`

    `hyp.txt` is Kaldi text (`utterance word word ...`). `hyp.ctm` has the times of each word and its confidence: its
    posterior in the lattice, calibrated on the data that the model was tuned on. Utterances of more than five minutes
    are cut at pauses; lattices and N-best lists are then those of the parts, `UTTERANCE-BEGIN-END` (hundredths of a
    second). Words that a model guesses (`lm.filler=spelled`) are `<word>` in `hyp.ctm`, and plain in `hyp.txt`.

    `--nbest 10` adds `nbest.jsonl`: a line for each of the best word sequences, with `utterance`, `rank`, `cost`,
    `acoustic_cost` (scaled), `graph_cost` and `words`. `--lattice` adds `lat.ark`, which Kaldi's tools, `speech3
    rescore` and `speech3 score` (oracle error rate) read. Each line of the `--hot` file is a word or phrase, which
    becomes e^BOOST times as probable; the default of BOOST is 3.

    A model that adapts to speakers, such as `exp/digits/sat`, decodes in passes: `pass1`, `pass2` in OUT have the words
    of the earlier ones and the transforms of the speakers from them; OUT has those of the last pass, which
    `--transforms OUT` uses again. For a network on adapted features, such as `exp/minilibri/sat_lfmmi`, these are in
    OUT/sat. Who speaks is read from DIR/utt2spk. The words of a better model give better transforms:

    `speech3 decode exp/minilibri/lfmmi DIR exp/first && speech3 decode exp/minilibri/sat_lfmmi DIR OUT --words
    exp/first/hyp.txt`

    `speech3 decode exp/digits/dnn DIR OUT --with exp/digits/lstm --with exp/digits/cnn` averages the models' log
    likelihoods of each frame. The models must have the same senones; the graph and the settings are those of MODEL.
    """
    from speech3.corpora import read_speech
    from speech3.decode import (
        NBEST_FILE,
        OtherWords,
        Recognizer,
        WantedResults,
        check_decoding,
        decode_datadir,
        load_recognizer,
    )
    from speech3.evaluate import read_text
    from speech3.runtime import available_jobs

    check_decoding(out, [directory, hot, transforms, words], lattices=lattice)
    if transforms and words:
        raise SettingError(f"--transforms {transforms}, --words {words}: both say what to adapt to; remove one of them")
    recognizer = Recognizer.load(model, graph=graph, hot=hot, min_confidence=min_confidence)
    more, data = [load_recognizer(other) for other in others or []], read_speech(directory, transcribed=False)[0]
    known = OtherWords(words, read_text(words)) if words else transforms
    wanted = WantedResults(nbest, lattice, mbr)
    found = decode_datadir(recognizer, more, data, out, wanted, jobs or available_jobs(), known)
    times = f", {out}/hyp.ctm" if (out / "hyp.ctm").exists() else ""
    paths = f", {out / NBEST_FILE}" if nbest else ""
    print(f"{counted(len(found.hypotheses), 'utterance')}: {out}/hyp.txt{times}{paths}")
    if lattice:
        print(f"lattices: {out}/lat.ark, {found.lattices.density:.1f} arcs per frame")


def rescore(
    decoded: Annotated[Path, typer.Argument(metavar="DECODE", help="Directory that `decode --lattice` wrote.")],
    lm: Annotated[str, typer.Argument(metavar="LM", help="ARPA file, neural model or module:function.")],
    out: Annotated[Path, typer.Argument(help="Directory for hyp.txt, rescore.json and, with ARPA, the new lattices.")],
    weight: Annotated[
        float | None,
        typer.Option(
            metavar="W", help="1 (default): LM replaces the graph's; less: they are interpolated.", min=0, max=1
        ),
    ] = None,
    tune: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Kaldi text file of references to choose the best weight on.")
    ] = None,
    nbest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Paths in nbest.jsonl; with a neural model or function, 100 by default.", min=1),
    ] = None,
    ctm: Annotated[bool, typer.Option("--ctm", help="Also write hyp.ctm.")] = False,
    old: Annotated[
        Path | None, typer.Option(metavar="ARPA", help="The graph's language model, if the graph does not keep it.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes for --ctm; 0: one per core.", min=0)] = 0,
) -> None:
    """Replace the language model costs in lattices with those of another language model.

    `speech3 decode exp/dnn data/dev exp/dev --lattice && speech3 rescore exp/dev 4gram.arpa.gz exp/dev4 --tune
    data/dev/text`

    `speech3 decode exp/dnn data/new exp/new --lattice && speech3 rescore exp/new 4gram.arpa.gz exp/new4 --weight 0.7`

    `speech3 rescore exp/dev exp/mixed exp/dev_neural --tune data/dev/text`

    A neural model, or its mixture with n-grams (`speech3 lm interpolate`), scores the N best word sequences. So does a
    function, which gets a list of the N best word sequences (tuples) of an utterance and
    returns the natural logarithm of the probability of each. Its module may be in the working directory:

    `speech3 rescore exp/new my_lm:log_probs exp/new_rescored --weight 0.5`
    """
    from speech3.decode import RescoreOptions, check_lattices, judges_lengths, open_lattices, rescore, write_times
    from speech3.evaluate import read_text
    from speech3.io import A_DATADIR
    from speech3.runtime import available_jobs, check_output

    if tune and weight is not None:
        raise SettingError(f"--weight {weight:g}, --tune {tune}: --tune chooses the weight; remove one of them")
    written = ("hyp.txt", "hyp.ctm", "nbest.jsonl", "rescore.json")
    check_output(out, [decoded, Path(lm), tune, old], written, not_in=[A_DATADIR])
    check_lattices(out, [decoded, Path(lm), tune, old])
    references = {key: text.split() for key, text in read_text(tune).items()} if tune else None
    directory = open_lattices(decoded)
    options = RescoreOptions(1.0 if weight is None else weight, references, nbest or 0, old, ctm)
    outcome = rescore(directory, lm, out, options)
    if ctm or judges_lengths(directory):
        write_times(directory, out, outcome.decoding, jobs or available_jobs())
    for tried, rate in outcome.rates.items():
        print(f"weight {tried:g}: WER {100 * rate:.2f} %")
    print(f"{counted(len(outcome.decoding.hypotheses), 'utterance')}: {out}/hyp.txt, weight {outcome.weight:g}")


def graph(
    model: Annotated[Path, _verb.model("Model directory, or OUT.onnx from `speech3 export`.")],
    out: Annotated[Path, typer.Argument(help="Directory for the graph, for --graph of `decode` and `transcribe`.")],
    add: Annotated[Path | None, typer.Option(help="Words to add to the language model, one per line.")] = None,
    lm: Annotated[Path | None, typer.Option(help="Another language model: ARPA, may be compressed.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to estimate another language model from.")] = None,
    order: Annotated[int | None, typer.Option(help="Order of the model from --text; default: 3.", min=1, max=6)] = None,
    grammar: Annotated[Path | None, typer.Option(help="JSGF grammar to use in place of a language model.")] = None,
    sentences: Annotated[Path | None, typer.Option(help="The only sentences to recognise, one per line.")] = None,
    lexicon: Annotated[Path | None, typer.Option(help="Pronunciations that replace the model's own.")] = None,
    lang: _verb.Lang = None,
) -> None:
    """Build another decoding graph for a trained model, in seconds and without training.

    `speech3 graph exp/minilibri/lfmmi exp/names --add names.txt --lang en-us`

    `speech3 decode exp/minilibri/lfmmi data/calls exp/calls --graph exp/names`

    A line of the `--add` file is `WORD` (as probable as the model's median word), `WORD 5` (five times as probable as
    that) or `WORD like OTHER` (as probable as OTHER after the same words); phones may follow. Words of `--add`,
    `--grammar` and `--sentences` without a pronunciation get one by rules learnt from the model's lexicon or, if
    `--lang` is given or the model was trained with a language, from espeak-ng, whichever is better on held-out words.
    Words of `--lm` and `--text` without a pronunciation get one only if `--lang` is given; otherwise they are left out
    and listed in `OUT/dropped.txt`. `OUT/lexicon.txt` holds the new pronunciations: to correct them, edit the file and
    pass it to `--lexicon`. Rules that took more than a second to learn are kept in `MODEL/g2p.safetensors` for the next
    time, if MODEL can be written to. Words of `--text` and `--sentences` are brought into the model's spelling, in
    letter case and punctuation.

    With `--grammar` and `--sentences`, a recording of up to a minute is one sentence, and in a stream what is said
    between two pauses is one. Nothing else can be recognised, so whatever is said becomes one of them, often with a
    high confidence, unless the recipe of the model had `lm.filler` or `negatives`, which write `<unk>` or a guess.

    The model's tuned acoustic scale and word penalty stay in use.
    """
    from speech3.decode import GRAPH_LEXICON, GraphSources, make_graph

    found = make_graph(model, out, GraphSources(lm, text, order, grammar, sentences, lexicon, add, lang))
    guessed, about = found.guessed, found.about
    if guessed.pronunciations:
        words = len({pron.word for pron in guessed.pronunciations})
        print(f"{counted(words, 'word')} pronounced {guessed.how}: {out / GRAPH_LEXICON}")
        for pron in guessed.pronunciations[:20]:
            print(f"  {pron.word} {' '.join(pron.phones)}")
        if len(guessed.pronunciations) > 20:
            print(f"  and {len(guessed.pronunciations) - 20} more")
    if about["dropped"]:
        print(f"not recognised, without a pronunciation: {counted(len(about['dropped']), 'word')}, {out}/dropped.txt")
    print(
        f"{out}: {counted(about['words'], 'word')}, {counted(about['states'], 'state')},"
        f" {counted(about['arcs'], 'arc')}"
    )


def align(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder of recordings with transcripts, Kaldi data directory, or one recording.",
            autocompletion=_verb.models,
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Output directory: a TextGrid for each recording, report.csv, model.")],
    last: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="With three arguments, these are MODEL DIR OUT: see below.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Align with this model, or `english`; do not train.", autocompletion=_verb.models
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train on SOURCE where the English aligner would be used.")
    ] = False,
    lang: _verb.Lang = None,
    lexicon: Annotated[
        Path | None, typer.Option(help="Pronunciations: `word phone phone ...`; with a model, in its phones.")
    ] = None,
    graphemes: Annotated[bool, typer.Option("--graphemes", help="The letters of a word are its phones.")] = False,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="What is said in the one recording.")] = None,
    tier: _verb.Tier = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAMES", help="textgrid, elan, audacity, ctm, json, csv; several with commas."
        ),
    ] = "textgrid",
    jobs: _verb.Jobs = 0,
    corrected: Annotated[
        Path | None, typer.Option(metavar="DIR", help="TextGrids or CTM that you have corrected, of some utterances.")
    ] = None,
) -> None:
    """Find the times of words and phones: a folder of recordings and transcripts in, TextGrids out.

    `speech3 align one.wav aligned --text "what is said"`, `speech3 align recordings aligned --lang cy`

    Each recording has its transcript beside it, in a file of its name: `.txt` or `.lab` (what is said, or a label
    track), `.TextGrid`, `.eaf` (its tier is chosen with `--tier` if there are several kinds), `.srt` or `.vtt`. An
    aligner is trained on all of them, and aligns them; pronunciations come from espeak-ng (`--lang`), from `--lexicon`,
    or from the letters (`--graphemes`). `aligned/` then has a TextGrid for each recording, with its name, in its
    subfolder, in its own time: tiers `words` and `phones`, or `SPEAKER - words`, `SPEAKER - phones` where the
    transcript has tiers or there are several speakers. `report.csv` has a line for each utterance, the doubtful ones
    first; what could not be aligned is an empty interval. `index.html` shows the suspicious utterances, to be heard,
    seen and checked in a browser.

    English is aligned at once, by an aligner that comes with speech3 (CMU's phones): without `--lang`, `--lexicon` and
    `--graphemes` if two thirds of the words are in its dictionary, and with `--lang en-us` if there are ten minutes of
    speech or less; other words are pronounced as its dictionary pronounces its own. `--model english` always uses it,
    `--train` never.

    In other languages, too, it aligns less than a minute of speech at once, each phone of espeak-ng (IPA) as the
    nearest of its own, unless `--train` is given. With more speech, its alignment is the first of the training.

    Run again after some transcripts or recordings have changed, the same command aligns only these, with the model of
    the first run; if more than a quarter have changed, it trains again.

    `speech3 align more aligned2 --model aligned/model`, `speech3 align one.wav aligned3 --model aligned/model --text
    "what is said"`

    The model that was trained is `aligned/model`; `--model` aligns with it, or with a model of a recipe. Letter case
    and punctuation in transcripts do not matter.

    `--format textgrid,elan,audacity` also writes, beside each TextGrid, an `.eaf` for ELAN and label tracks for
    Audacity (`.words.txt`, `.phones.txt`). `--format textgrid,ctm,json,csv` writes all recordings into `words.ctm` and
    `phones.ctm`, and a `.json` and `.csv` beside each TextGrid. These have confidences: 1 where no pdf of the model
    fits better than the aligned ones, 0 where a pdf picked at random would fit just as well.

    `speech3 align MODEL DIR OUT`, such as `speech3 align exp/digits/tri data/new exp/new_align`

    With three arguments, DIR is a Kaldi data directory, and times count from the start of the utterance. `words.ctm`
    and `phones.ctm` hold times and confidences, `textgrid/UTTERANCE.TextGrid` is the same for Praat; `ali.ark` has a
    pdf for each frame (Kaldi int32 vectors). Boundaries lie between the frames: each is the median of its posterior,
    given the spectral change in the waveform, too (where only features are at hand: without it).

    Lists with tab-separated fields: `confidence.txt` (utterance, confidence, its worst word, the confidence of that
    word, seconds); `suspicious.txt`, the utterances that are probably mistranscribed, worst first (utterance,
    confidence, reason, the transcript with * around doubtful words); `oov.txt`, words that are not in the lexicon
    (word, count, utterances). `bad.txt` lists utterances that could not be aligned, with the reason.

    An utterance longer than a minute is searched for the words of its transcript and cut at pauses; its transcript may
    omit parts of the recording or contain text that was not spoken. CTM and TextGrid cover the whole utterance;
    `split/` is a data directory of its parts, ready for training; `gaps.txt` lists what has no counterpart in the
    recording or the transcript (utterance, start, end, words if any).

    `speech3 align exp/minilibri/aligner data/lectures exp/lectures --lang en-us` also pronounces words that are not in
    the lexicon; `--lexicon more.txt` reads their pronunciations from a file (`word phone phone ...`).

    Once you have corrected the phones of some TextGrids (ten or more), `--corrected DIR` moves the boundaries of all
    utterances by the same conventions, and says how much nearer that brings them: measured on each corrected recording
    with what the others say. If it brings them no nearer, nothing is moved.
    """
    from speech3.decode import check_alignment
    from speech3.evaluate import read_times
    from speech3.recipe import FORMATS, AlignRequest, align_source
    from speech3.runtime import check_output

    if last is not None:
        check_alignment(last, [out, lexicon, corrected])
    else:
        check_output(out, [corrected], ["*"])
        check_output(out, [lexicon], ["model"])
    times = read_times(corrected, level="phones") if corrected else None
    if times and "phones" not in times.tracks:
        raise DataError(f"{corrected}: has no times of phones; correct the tier phones of the TextGrids")
    phones = times.tracks["phones"] if times else None
    if last is not None:
        flags = {"--graphemes": graphemes or None, "--train": train or None}
        alone = {"--model": model, "--text": text, "--tier": tier, **flags}
        given = [name for name, value in alone.items() if value is not None]
        if given or formats != "textgrid":
            raise SettingError(
                f"{', '.join(given) or '--format'}: only for speech3 align SOURCE OUT; with three arguments (MODEL DIR"
                " OUT) remove it"
            )
        _align_kaldi(source, out, last, jobs, lexicon=lexicon, lang=lang, corrected=phones)
        return
    if model and graphemes:
        raise SettingError("--graphemes: is for training; a model given by --model has its own phones: remove one")
    if model and train:
        raise SettingError("--train: trains a model, --model uses one: remove one of them")
    if lexicon and graphemes:
        raise SettingError(f"--lexicon {lexicon}: --graphemes makes the pronunciations; remove one of them")
    names = [name.strip().lower() for name in formats.split(",") if name.strip()]
    chosen = tuple(name for name in FORMATS if name in names)
    if strange := [name for name in names if name not in FORMATS] or ([] if names else [formats]):
        raise SettingError(f"--format {strange[0]}: is not a format; choose from {', '.join(FORMATS)}")
    request = AlignRequest(model, text, tier, lang, lexicon, graphemes, train, phones, chosen, jobs)
    for line in align_source(source, out, request).lines(out):
        print(line)


def _align_kaldi(model: Path, directory: Path, out: Path, jobs: int, **options: Any) -> None:
    from speech3.corpora import is_folder
    from speech3.data import read_datadir
    from speech3.decode import align_datadir, load_recognizer
    from speech3.runtime import available_jobs

    if is_folder(directory):
        raise SettingError(
            f"{directory}: is a folder of recordings; `speech3 align {directory} {out} --model {model}` aligns them"
        )
    recognizer, data = load_recognizer(model), read_datadir(directory)
    found = align_datadir(recognizer, data, out, jobs or available_jobs(), **options)
    print(
        f"{counted(len(found.aligned.alignments), 'utterance')}: {out}/words.ctm, {out}/phones.ctm,"
        f" {out}/textgrid, {out}/ali.ark"
    )
    print(f"{len(found.suspicious)} suspicious: {out}/suspicious.txt")
    if found.unknown:
        print(
            f"not in the lexicon: {counted(len(found.unknown), 'word')}, {out}/oov.txt; add pronunciations"
            " with --lexicon or --lang"
        )
    if found.layouts:
        print(f"{len(found.layouts)} long utterances: parts in {out}/split, unmatched text or speech in {out}/gaps.txt")


def tune(
    model: Annotated[Path, _verb.model("Model directory with a decoding graph, such as exp/dnn.")],
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder with transcripts or Kaldi data directory, neither train nor test."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the search and its grid.")
    ] = None,
    jobs: _verb.Jobs = 0,
    tier: _verb.Tier = None,
) -> None:
    """Find the acoustic scale and word penalty with the lowest error rate, and store them with the model.

    `speech3 tune exp/dnn exp/digits/data/dev`

    `speech3 tune exp/dnn data/dev decode.acoustic_scales=[0.06,0.08,0.1] decode.word_penalties=[0,1]`

    Recipes do this themselves; a model from `speech3 train` needs it once before `decode` and `transcribe`. The result,
    with a calibration of the confidences, is `decode.json` in the model directory; of a model that adapts to speakers,
    the first pass and the last are tuned, and if the last is no better, the model uses only the first. The grid and the
    metric are those of the model's recipe (`tuning.json` in the model directory) unless keys change them.
    """
    from speech3.config import changed, refuse_unused
    from speech3.decode import load_recognizer, load_tuning, tune_datadir
    from speech3.evaluate import ERROR_RATES
    from speech3.io import DECODE_FILE, TUNING_FILE
    from speech3.recipe import read_for
    from speech3.runtime import available_jobs

    recognizer = load_recognizer(model)
    lfmmi, hybrid = "networks trained with LF-MMI", "GMMs and networks trained by cross-entropy"
    pseudo = recognizer.scorer.pseudo_likelihoods
    unused = {"decode.acoustic_scales": hybrid} if pseudo else {"decode.lfmmi_acoustic_scales": lfmmi}
    refuse_unused(overrides or [], unused)
    config = changed(load_tuning(recognizer), "decode", overrides or [], recognizer.directory / TUNING_FILE)
    data = read_for(recognizer, directory, tier)
    best = tune_datadir(recognizer, data, config, jobs or available_jobs(), ERROR_RATES[config.metric])
    print(f"{recognizer.directory / DECODE_FILE}: acoustic scale {best.acoustic_scale:g},", end=" ")
    print(f"word penalty {best.word_penalty:g}, {config.metric} {100 * best.error_rate:.2f} % on {directory}")


def forward(
    model: _verb.Model,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory; needs no text.")],
    out: Annotated[Path, typer.Argument(help="Output directory: loglikes.ark and loglikes.scp.")],
    jobs: Annotated[int, typer.Option(help="Number of processes for the features; 0: one per core.", min=0)] = 0,
) -> None:
    """Write the log likelihood of every pdf in every frame (for a network: log posterior minus log prior).

    `speech3 forward exp/dnn data/test exp/dnn/forward_test`

    `latgen-faster-mapped --acoustic-scale=0.1 final.mdl HCLG.fst ark:exp/dnn/forward_test/loglikes.ark ark:lat`

    `final.mdl` and `HCLG.fst` are those of the alignment that `speech3 import` read, or come from `speech3
    export-kaldi`. For a model trained with LF-MMI the scores are the network's outputs, one row per three frames: run
    Kaldi's decoder with `--acoustic-scale=1.0` and, where a program or script has the option, with
    `--frame-subsampling-factor=3`.

    The columns are the pdfs. Utterances without features are listed in `OUT/bad.txt`. GMMs that adapt to speakers, such
    as `exp/digits/sat`, write the scores of their first pass, which are not adapted.
    """
    from speech3.data import read_datadir
    from speech3.decode import features_for, load_recognizer, say_skipped, write_loglikes
    from speech3.runtime import available_jobs, check_output, say

    check_output(out, [], ("loglikes.ark", "loglikes.scp", "bad.txt"), marks=["loglikes.ark", "ali.ark"])

    recognizer = load_recognizer(model)
    if recognizer.adapted:
        say(f"{model}: the scores are those of its first pass, which is not adapted to speakers")
    feats, skipped = features_for(recognizer, read_datadir(directory), jobs or available_jobs(), out)
    written = write_loglikes(recognizer, feats, out, skipped)
    say_skipped(skipped, "left out")
    print(f"{counted(written, 'utterance')}, {recognizer.outputs.num_pdfs} pdfs: {out}/loglikes.scp")


def export(
    model: _verb.Model,
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write; OUT.decode/ is written beside it.")],
    int8: Annotated[bool, typer.Option("--int8", help="Store weights in int8 (dynamic quantisation).")] = False,
) -> None:
    """Write a network for onnxruntime, checked against PyTorch, and the files that decoding needs.

    `speech3 export exp/digits/dnn digits.onnx && speech3 transcribe digits.onnx hello.wav`

    The network takes features (`feats`: frames x bins, float32) and returns log posteriors minus log priors
    (`loglikes`; after LF-MMI training, its outputs); it includes normalisation and splicing, and its metadata hold the
    config of the features. `OUT.decode/` holds lexicon, senones, decoding graph and settings: always move both
    together. `transcribe`, `decode`, `align`, `forward` and `tune` accept OUT.onnx in place of a model directory. The
    speeds printed are those of the network alone on one thread. To measure how many errors int8 costs:

    `speech3 decode float.onnx DIR float && speech3 decode int8.onnx DIR int8`

    `speech3 score DIR/text float/hyp.txt --against int8/hyp.txt`
    """
    from speech3.decode import export

    done = export(model, out, int8=int8)
    for form in done.forms:
        speed = f"{form.name:8} {form.num_bytes / 1e6:8.2f} MB  {form.frames_per_s:8.0f} frames/s"
        differs = f"  differs by at most {form.largest_difference:.2g}, on average {form.mean_difference:.2g}"
        print(speed + (differs if form.name != "PyTorch" else ""))
    if int8:
        print(f"{done.int8_products} of {done.products} matrix products are in int8")
    print(f"{done.path}, {done.rest}")
    if not done.graph:
        print(f"{model} has no decoding graph: the file can score and align, but not decode")
    elif not done.tuned:
        print(f"{model} was not tuned: run speech3 tune {done.path} DIR before decoding")
