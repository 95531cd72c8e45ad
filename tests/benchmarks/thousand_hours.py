"""Peak memory of each stage's bookkeeping on a simulated corpus of 1,000 hours; one JSON line a stage.

    OMP_NUM_THREADS=1 python tests/benchmarks/thousand_hours.py [--utterances 300000] [--stages gmm,frames] [--out DIR]

The corpus is LibriSpeech's in size and layout: utterances of 12 s, 33 words each, 90,000 words, 125 utterances a
speaker. All recordings of a chapter are one file (hard links), and `feats.scp` names the same few matrices of 1,200
frames again and again, with two values per frame instead of 120: what is read at one time is small, but there are as
many names, lines, frames, labels and n-grams as in a real corpus. Functions are those of the recipe's stages. What
takes days is left out or replaced: features are copied, 16 words of each utterance are spread evenly in place of an
alignment, hypotheses are drawn, GMM training makes one pass of each kind in one process, and networks are not trained,
but minibatches of shuffled frames and of chunks are drawn.

Each stage runs in a process of its own. `peak_mb` is the peak of its memory without pages of mapped files, which the
system reclaims when it needs them; `start_mb` of it is Python and its libraries.
"""

import argparse
import json
import os
import shutil
import string
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FRAMES, WORDS, ALIGNED_WORDS = 1200, 33, 16
VOCABULARY, UTTERANCES_A_SPEAKER, CHAPTERS = 90_000, 125, 2
HELD_OUT = 2_700  # utterances of dev and of test each, at most a tenth of train
MATRICES = 16
KEYS = ["hmm.features=given", "hmm.aligner_features=given", "features=given", "lfmmi.features=given", "jobs=1"]


def vocabulary(generator: np.random.Generator) -> list[str]:
    """Words of 1 to 10 letters, all different."""
    words = dict[str, None]()
    while len(words) < VOCABULARY:
        size = min(10, 1 + generator.poisson(5))
        words["".join(generator.choice(list(string.ascii_uppercase), size))] = None
    return list(words)


def sentences(count: int, words: list[str], generator: np.random.Generator) -> Iterator[str]:
    """Sentences whose words are drawn by Zipf's law, one after another: more different n-grams than real text has."""
    share_V = 1 / np.arange(1, len(words) + 1)
    edges_V = np.cumsum(share_V / share_V.sum())
    for _ in range(count):
        drawn = np.searchsorted(edges_V, generator.random(WORDS)).clip(0, len(words) - 1)
        yield " ".join(words[number] for number in drawn.tolist())


def make_corpus(out: Path, utterances: int) -> None:
    """LibriSpeech's layout, with a lexicon, and the few matrices that stand for all features."""
    import soundfile

    from speech3.io.ark import write_ark

    generator = np.random.default_rng(1)
    words = vocabulary(generator)
    phones = [f"P{number}" for number in range(39)]
    prons = (" ".join(generator.choice(phones, len(word) % 7 + 1)) for word in words)
    (out / "librispeech-lexicon.txt").write_text("".join(f"{w}\t{p}\n" for w, p in zip(words, prons, strict=True)))
    held_out = max(16, min(HELD_OUT, utterances // 10))
    for part, count, first in (
        ("train-clean-100", utterances, 1000),
        ("dev-clean", held_out, 80_000),
        ("test-clean", held_out, 90_000),
    ):
        texts = sentences(count, words, generator)
        for speaker in range(-(-count // UTTERANCES_A_SPEAKER)):
            own = min(UTTERANCES_A_SPEAKER, count - speaker * UTTERANCES_A_SPEAKER)
            for chapter in range(CHAPTERS):
                name = f"{first + speaker}-{chapter}"
                directory = out / "LibriSpeech" / part / str(first + speaker) / str(chapter)
                directory.mkdir(parents=True)
                keys = [f"{name}-{number:04d}" for number in range(own // CHAPTERS + (chapter < own % CHAPTERS))]
                (directory / f"{name}.trans.txt").write_text("".join(f"{key} {next(texts)}\n" for key in keys))
                for place, key in enumerate(keys):
                    if place:
                        (directory / f"{key}.flac").hardlink_to(directory / f"{keys[0]}.flac")
                    else:
                        soundfile.write(directory / f"{key}.flac", np.zeros(16_000 * FRAMES // 100), 16_000)
    feats = ((f"m{n}", generator.standard_normal((FRAMES, 2)).astype(np.float32)) for n in range(MATRICES))
    write_ark(out / "few.ark", feats, out / "few.scp")


def experiment(out: Path):  # type: ignore[no-untyped-def]
    """The recipe librispeech on the simulated corpus."""
    from speech3.recipe.experiment import open_experiment

    return open_experiment("librispeech", out / "exp", out / "LibriSpeech", KEYS, "thousand_hours.py")


def data(out: Path) -> None:
    """The reader of LibriSpeech, the lexicon, the data directories; then the features that they are given."""
    from speech3.io.ark import read_scp
    from speech3.recipe import stages

    e = experiment(out)
    stages.make_data(e)
    few = list(read_scp(out / "few.scp").values())
    for split in ("train", "dev", "test"):
        with (e.data(split) / "text").open() as text, (e.data(split) / "feats.scp").open("w") as scp:
            scp.writelines(f"{line.split(' ', 1)[0]} {few[n % MATRICES]}\n" for n, line in enumerate(text))


def reading(out: Path) -> None:
    """All text files of a data directory, checked as `speech3 validate` does, and a split by speaker."""
    from speech3.data.datadir import parse
    from speech3.data.subsets import split_by_speaker

    found, faults = parse(experiment(out).data("train"), need_text=True)
    assert not faults
    split_by_speaker(found, {"one": 0.5, "other": 0.5}, 1)


def lengths(out: Path) -> None:
    """The hours, from which sizes follow, and what `--dry-run` finds."""
    from speech3.recipe.costs import hours_of_speech
    from speech3.recipe.plan import planned_steps
    from speech3.recipe.steps import make_plan

    e = experiment(out)
    hours_of_speech(e, make_plan(planned_steps(e), e.out, None, None))
    print(f"{e.hours:.0f} hours", file=sys.stderr)


def features(out: Path) -> None:
    """Extraction: journal, archive, index; the features are copied."""
    from speech3.recipe import stages

    stages.extract_features(experiment(out), "given")


def gmm(out: Path) -> None:
    """GMM training in one process; leaves the triphones' directory, with a tree of monophones.

    Transcripts and alignments of all utterances; statistics, whose size does not depend on their number, of every 30th.
    """
    from speech3.hmm import train
    from speech3.hmm.clustering import group_numbers
    from speech3.hmm.gmm import Gmm, update
    from speech3.hmm.model import Hmm, monophone_tree
    from speech3.hmm.pronunciation_probs import count, estimate, expected_silences
    from speech3.hmm.workers import WordLists, WorkerShare
    from speech3.recipe import stages

    e = experiment(out)
    lexicon, transcripts, feats, _ = stages.training_material(e, "given")
    tree = monophone_tree(group_numbers(lexicon))
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5))
    mixture = Gmm(
        np.arange(tree.num_pdfs + 1), np.ones(tree.num_pdfs), np.zeros((tree.num_pdfs, 2)), np.ones((tree.num_pdfs, 2))
    )
    share = WorkerShare(WordLists(transcripts.words.items()), feats)
    for utterance, words in share.words.items():
        share.alignments[utterance] = drawn_alignment(lexicon, words)
    counts = count(share)
    estimate(lexicon, counts, expected_silences(share, counts))
    some = WorkerShare({key: share.words[key] for key in list(share.words)[::30]}, feats)
    train.flat_start(some, lexicon)
    train.context_stats(some)
    train.divide_equally(some)
    found = train.collect(some, hmm, mixture)
    hmm.save(e.model("tri"))
    update(mixture, found.stats).save(e.model("tri") / "model.safetensors", {"features": "given"})


def drawn_alignment(lexicon, words: list[str]):  # type: ignore[no-untyped-def]
    """The first words, evenly spread over the utterance."""
    from speech3.hmm.transcript import equal_alignment

    return equal_alignment(lexicon, words[:ALIGNED_WORDS], FRAMES)


@dataclass
class Drawn:
    """Stands for a recogniser."""

    hmm: object
    scratch: Path

    @property
    def clock(self):  # type: ignore[no-untyped-def]
        """Frames of 10 ms."""
        from speech3.hmm.alignment.times import FrameClock

        return FrameClock(0.01, 0.0)

    def align(  # type: ignore[no-untyped-def]
        self, feats: Mapping[str, np.ndarray], texts: Mapping[str, str], jobs: int, *, strict: bool = True
    ):
        """Alignments as `Recognizer.align` returns them, from two files."""
        from speech3.hmm.workers import StoredAlignments, merged_alignments

        stores = [StoredAlignments(self.scratch / f"{part}.ali") for part in (0, 1)]
        for place, utterance in enumerate(feats):
            words = texts[utterance].split()
            stores[place % 2][utterance] = drawn_alignment(self.hmm.lexicon, words)  # type: ignore[attr-defined]
        return merged_alignments(stores), {}


def alignment(out: Path) -> None:
    """What the stage `hmm/align` writes for train and dev, from alignments that processes have stored in files."""
    from speech3.hmm.model import load_hmm
    from speech3.io.ark import ArkReader
    from speech3.recipe import stages

    e = experiment(out)
    for split in ("train", "dev"):
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            drawn = Drawn(load_hmm(e.model("tri")), Path(scratch))
            feats = ArkReader(e.features("given", split) / "feats.scp")
            stages.align_split(drawn, feats, e.data(split), e.alignment("tri", split), 1)  # type: ignore[arg-type]


def lfmmi_hmm(out: Path) -> None:
    """The stage `hmm/lfmmi`: biphone tree, phone language model, denominator."""
    from speech3.recipe import stages as lfmmi

    lfmmi.train_lfmmi_hmm(experiment(out))


def frames(out: Path) -> None:
    """Packed frames of train and dev, with phones for LF-MMI; those with senones differ in the labels only."""
    from speech3.recipe import stages as lfmmi

    e = experiment(out)
    lfmmi.pack_lfmmi_frames(e, e.frames("lfmmi"))


def minibatches(out: Path) -> None:
    """Minibatches of shuffled frames and of LF-MMI's chunks with numerators, from all over the files."""
    import torch

    from speech3.frames.chunks import Chunks
    from speech3.frames.minibatches import Minibatches
    from speech3.frames.packed import open_packed
    from speech3.sequence.lfmmi import AlignmentNumerators, load_denominator

    e, cpu = experiment(out), torch.device("cpu")
    packed = open_packed(e.frames("lfmmi") / "train.frames")
    drawn = Minibatches(packed, left=5, right=5, minibatch=256, seed=1, device=cpu)
    for number in np.linspace(0, len(drawn) - 1, 2000).astype(int).tolist():
        drawn.draw(1, number)
    chunks = Chunks(
        packed,
        left=15,
        right=15,
        chunk=150,
        streams=32,
        subsampling=3,
        seed=1,
        device=cpu,
        targets=AlignmentNumerators(load_denominator(e.model("lfmmi_hmm")), 150),
    )
    for number in np.linspace(0, len(chunks) - 1, 200).astype(int).tolist():
        chunks.draw(1, number)


def language_model(out: Path) -> None:
    """The stage `graph/lm`: a trigram of the transcripts, and its perplexities."""
    from speech3.recipe import language

    language.make_lm(experiment(out))


def scoring(out: Path) -> None:
    """Hypotheses of all training utterances, a tenth of whose words are wrong: files of hypotheses, score, tables."""
    from speech3.data.datadir import read_datadir
    from speech3.decode.output import write_hypotheses
    from speech3.decode.search import Decoding, Hypothesis
    from speech3.evaluate import tables
    from speech3.evaluate.text import read_text
    from speech3.evaluate.wer import score

    e, generator = experiment(out), np.random.default_rng(3)
    utterances = read_datadir(e.data("train")).utterances

    def heard(utterance: str) -> Hypothesis:
        wrong_W = generator.random(WORDS) < 0.1
        said = (utterances[utterance].text or "").split()
        words = tuple("WRONG" if wrong else word for word, wrong in zip(said, wrong_W, strict=True))
        return Hypothesis(utterance, words, words, 0.0, 0.0, True)

    write_hypotheses(e.out / "hyp.txt", Decoding(tuple(map(heard, utterances)), {}))
    references = {key: utterance.text or "" for key, utterance in utterances.items()}
    speakers = {key: utterance.speaker for key, utterance in utterances.items()}
    found = score(references, read_text(e.out / "hyp.txt"), speakers)
    tables.write_details(e.out / "score", found)


STAGES: dict[str, Callable[[Path], None]] = {
    stage.__name__: stage
    for stage in (
        data, reading, lengths, features, gmm, alignment, lfmmi_hmm, frames, minibatches, language_model, scoring
    )
}  # fmt: skip


def memory_mb(pid: int) -> float:
    """Memory of a process without pages of mapped files."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(status.split(f"{key}:")[1].split()[0]) for key in ("RssAnon", "RssShmem")) * 1024 / 1e6
    except (OSError, IndexError):
        return 0.0


def measure(stage: str, out: Path) -> dict[str, float | str]:
    """Run a stage in a new process; its peak memory, and its time."""
    start, started = time.monotonic(), memory_mb(os.getpid())
    if not (pid := os.fork()):
        try:
            STAGES[stage](out)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    peak, ended = 0.0, 0
    while not ended:
        peak = max(peak, memory_mb(pid))
        time.sleep(0.02)
        ended, status, used = os.wait4(pid, os.WNOHANG)
    if status:
        raise SystemExit(f"{stage} failed")
    return {
        "stage": stage,
        "peak_mb": round(peak),
        "start_mb": round(started),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "wall_s": round(time.monotonic() - start, 1),
    }


def main() -> None:
    """Print a line for each stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=300_000)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--out", type=Path, help="kept, and used again if it is there; default: a temporary directory")
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="thousand-"))
    try:
        if not (out / "few.scp").exists():
            out.mkdir(parents=True, exist_ok=True)
            make_corpus(out, arguments.utterances)
        import speech3.train.parts  # noqa: F401  # in all stages from here on

        for stage in arguments.stages.split(","):
            hours = arguments.utterances * FRAMES / 360_000
            print(json.dumps({**measure(stage, out), "utterances": arguments.utterances, "hours": hours}), flush=True)
    finally:
        if not arguments.out:
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
