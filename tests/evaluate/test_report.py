"""The report is one file, well formed, escaped, and shows the figures it was given."""

import base64
import io
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.errors import Speech3Error
from speech3.evaluate.doctor import environment_facts
from speech3.evaluate.figures import AlignedUtterance, Line, draw_accuracy, draw_lines, svg
from speech3.evaluate.html import Clip, aligned, encode_clip, escape
from speech3.evaluate.page import (
    Report,
    SplitVolume,
    Suspect,
    Suspects,
    System,
    UnknownWords,
    UtteranceMaterial,
    within_limit,
    write_report,
)
from speech3.evaluate.wer import score
from speech3.train.curves import Curve

NASTY = "<script>alert(1)</script> \"&' $x_1$ \x00"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Checker(HTMLParser):
    """Collects text and addresses; fails where a tag is closed that is not the open one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "srcset")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def check(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    checker.close()
    assert checker.open == []
    return checker


def a_report() -> Report:
    ref = {f"{NASTY[:8]}-{n}": f"one two {NASTY[:6]} 四" for n in range(40)}
    speakers = {name: f"speaker{n % 30}" for n, name in enumerate(ref)}
    hyps = [
        {name: text if n % k else f"{NASTY} five" for n, (name, text) in enumerate(ref.items())} for k in (2, 4, 100)
    ]
    hyps[0].pop(next(iter(ref)))
    metrics: list[dict[str, object]] = [{"event": "start"}]
    for n in (0, 1, 1, 2):
        losses = {"train_loss": 2 - n / 4, "heldout_loss": 2 - n / 5}
        accuracy = {"heldout_accuracy": 0.3 + n / 20}
        metrics.append({"event": "epoch", "epoch": n + 1, "seconds": 400.0 * (n + 1), **losses, **accuracy})
    systems = [
        System("mono", score(ref, hyps[0], speakers), training_s=3.21, tuned={"acoustic scale": 0.1}),
        System("tri", score(ref, hyps[1], speakers), parameters=632000, training_s=4000, decoding_rtf=0.1234),
        System(
            "dnn",
            score(ref, hyps[2], speakers),
            parameters=2550808,
            metrics=metrics,
            network={"best_epoch": 2, "heldout_accuracy": 0.35, "heldout_loss": 1.8125},
        ),
    ]
    wave_N = np.sin(np.arange(16000) / 7).astype(np.float32)
    segments = [(0.0, 0.02, "HH"), (0.02, 0.9, "<ə>"), (0.9, 1.0, "$四$")]
    picture = AlignedUtterance(
        NASTY, wave_N, 16000, np.random.default_rng(0).normal(size=(98, 40)), 10.0, segments, segments
    )
    return Report(
        f"digits {NASTY}",
        "recipes/run.sh digits a=1 && true",
        systems,
        volumes=[SplitVolume("train", 1234, 5, 1.234)],
        picture=picture,
        config_yaml=f"corpus: digits\nname: '{NASTY}'\n",
        environment=environment_facts(),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Checker]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, a_report())
    return path.read_text(encoding="utf-8"), check(path)


def test_nothing_from_outside(page: tuple[str, Checker]) -> None:
    text, checker = page
    assert all(address.startswith(("#", "data:")) for address in checker.addresses)
    assert not re.search(r"url\((?!#)|@import", text)
    assert "script" not in checker.tags
    anchors = {address[1:] for address in checker.addresses if re.fullmatch(r"#[a-z-]+", address)}
    assert anchors <= set(checker.ids)
    assert len(checker.ids) == len(set(checker.ids))


def test_text_is_escaped(page: tuple[str, Checker]) -> None:
    text, checker = page
    assert "<script>alert" not in text
    assert "\x00" not in text
    assert checker.text.count("<script>alert(1)</script>") >= 4
    assert escape("a\x00<\"'\ud800") == "a\ufffd&lt;&quot;&#x27;\ufffd"


def test_figures_are_shown(page: tuple[str, Checker]) -> None:
    text, checker = page
    report = a_report()
    best = report.best.score
    assert report.best.name == "dnn"
    low, high = best.wer_ci95
    for piece in (
        f"{100 * best.wer:.2f} % WER, dnn", f"{100 * low:.2f} – {100 * high:.2f}", "2,550,808", "632,000",
        "1 h 06 min", "3.2 s", "0.123", "acoustic scale 0.1", "1,234", "1.23", "minutes of training",
        "not decoded and counted as deletions", "5 speakers with fewer errors", "epoch 2", "1.8125", "name: '", "jiwer",
        "<ə>", "四",
    ):  # fmt: skip
        assert piece in checker.text, piece
    assert text.count("<svg") == 3
    assert "#0a0" not in text  # every stand-in colour became a variable of the page


def test_an_epoch_done_twice_is_drawn_once(page: tuple[str, Checker]) -> None:
    curve = Curve("dnn", 1, (400.0, 800.0, 1200.0), (0, 0, 0), (0.3, 0.35, 0.4))
    assert svg("Held-out frame accuracy", lambda axes: draw_accuracy(axes, [curve], "seconds")) in page[0]
    minutes = [400 / 60, 800 / 60, 20]
    heldout, train = Line("dnn, held-out", minutes, [2, 1.8, 1.6]), Line("dnn, train", minutes, [2, 1.75, 1.5], 0, True)
    drawn = partial(draw_lines, lines=[heldout, train], x_label="minutes of training")
    assert svg("Loss per frame", drawn) in page[0]


def asynchronous(epochs: int) -> list[dict[str, object]]:
    return [
        {"event": "epoch", "epoch": n, "seconds": 100.0 * n, "frames": 1000 * n, "heldout_accuracy": 0.3 + n / 20,
         "minibatches": {"used": 2830, "stale": 4, "refused": 1, "returned": 7}, "versions": 943, "restarts": n % 2,
         "staleness": [100, 700, 143],
         "shards": [{"minibatches": 1700, "compute_s": 20.1, "sync_s": 0.4, "wait_s": 0.05, "busy": 12},
                    {"minibatches": 1135, "compute_s": 20.3, "sync_s": 0.3, "wait_s": 0.0, "busy": 9}]}
        for n in range(1, epochs + 1)
    ]  # fmt: skip


def test_the_effects_of_asynchrony_are_shown(tmp_path: Path) -> None:
    one = score({"u": "a"}, {"u": "a"})
    evaluated = {"event": "heldout", "epoch": 1, "seconds": 50.0, "frames": 500, "heldout_accuracy": 0.2}
    systems = [
        System("dnn", one, metrics=[evaluated, *asynchronous(3)]),
        System("cnn", one, metrics=asynchronous(1)),
        System("sgd", one, metrics=[{**asynchronous(1)[0], "shards": [], "staleness": []}]),
    ]
    write_report(tmp_path / "r.html", Report("t", "c", systems))
    checker, page = check(tmp_path / "r.html"), (tmp_path / "r.html").read_text(encoding="utf-8")
    for piece in (
        "2 shards, 2,829 versions. Minibatches: 8,490 used, 12 too stale, 3 refused, 21 returned",
        "Restarted shards: 2.",
        "05,10060.0 %60.31.200.1536",
        "2,829 minibatches, mean 1.05, 95 % at most 2",
        "943 minibatches, mean",
    ):
        assert piece in checker.text, piece
    curve = Curve("dnn", 1, (50.0, 100.0, 200.0, 300.0), (500, 1000, 2000, 3000), (0.2, 0.35, 0.4, 0.45))
    others = [Curve(name, 1, (100.0,), (1000,), (0.35,)) for name in ("cnn", "sgd")]
    assert svg("Held-out frame accuracy", lambda axes: draw_accuracy(axes, [curve, *others], "seconds")) in page
    assert page.count("<svg") == 3  # accuracy, two histograms: plain SGD has none
    assert len(checker.ids) == len(set(checker.ids))


def test_a_page_about_characters(tmp_path: Path) -> None:
    """Words of several characters: what is ranked, counted and named is characters."""
    ref = {f"s{n % 8}-{n}": "三百 五十" for n in range(40)}
    speakers = {name: name.partition("-")[0] for name in ref}
    one = {name: "三百 五" if n == 3 else text for n, (name, text) in enumerate(ref.items())}  # one character, one word
    two = {name: "九九 五十" if n == 4 else text for n, (name, text) in enumerate(ref.items())}  # two, one word
    systems = [System("tri", score(ref, two, speakers)), System("dnn", score(ref, one, speakers))]
    write_report(tmp_path / "r.html", Report("t", "c", systems, metric="CER"))
    text = check(tmp_path / "r.html").text
    for piece in (
        "0.62 % CER, dnn",
        "systemCER %",
        "160 characters in 40 utterances",
        "matched-pairs randomisation test on errors in characters",
        "s3-3: 1 error in 4 characters",
        "speakercharactersdnn, CER %tri",
        "s3205.000.00",
    ):
        assert piece in text, piece
    assert "words" not in text.partition("Worst utterances")[2].partition("Terms")[0]


def test_a_column_for_our_own_language_model(tmp_path: Path) -> None:
    ref = {f"s{n}-0": "a b" for n in range(10)}
    wrong = score(ref, {name: "a c" if name == "s3-0" else text for name, text in ref.items()})
    systems = [System("tri", wrong, own_lm=score(ref, ref)), System("dnn", wrong)]
    write_report(tmp_path / "r.html", Report("t", "c", systems))
    text = check(tmp_path / "r.html").text
    assert "WER % with our own language model" in text
    assert "0.00 [0.00, 0.00]" in text
    write_report(tmp_path / "r.html", Report("t", "c", [System("dnn", wrong)]))
    assert "own language model" not in check(tmp_path / "r.html").text


def test_bare_report(tmp_path: Path) -> None:
    perfect = score({"u": "a"}, {"u": "a"})
    write_report(tmp_path / "r.html", Report("t", "c", [System("x", perfect)], metric="CER"))
    text = check(tmp_path / "r.html").text
    assert "0.00 % CER, x" in text
    assert "No utterance has an error." in text
    for absent in ("Training", "Alignment", "Speakers", "Configuration", "Environment"):
        assert absent not in text


def test_no_system_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match="no system was scored"):
        write_report(tmp_path / "r.html", Report("t", "c", []))
    assert not (tmp_path / "r.html").exists()


def test_aligned_words_are_marked() -> None:
    text = aligned(score({"u": "a b c"}, {"u": "a x c d"}).utterances[0])
    assert '<span class="w"><span>a</span><span>a</span></span>' in text
    assert '<span class="w s" title="substitution"><span>b</span><span>x</span></span>' in text
    assert '<span class="w i" title="insertion"><span></span><span>d</span></span>' in text


def test_a_simulators_clock_is_not_taken_for_time(tmp_path: Path) -> None:
    simulated = [{**record, "world": "simulated", "train_loss": 1.0} for record in asynchronous(2)]
    write_report(
        tmp_path / "r.html", Report("t", "c", [System("dnn", score({"u": "a"}, {"u": "a"}), metrics=simulated)])
    )
    assert check(tmp_path / "r.html").text.count("virtual seconds of training") == 2


def test_silent_and_short_utterance_can_be_drawn(tmp_path: Path) -> None:
    picture = AlignedUtterance("u", np.zeros(80, dtype=np.float32), 8000, np.full((1, 23), -np.inf), 10.0, [], [])
    write_report(tmp_path / "r.html", Report("t", "c", [System("x", score({"u": "a"}, {"u": ""}))], picture=picture))
    assert check(tmp_path / "r.html").tags >= {"svg", "image"}


def material(name: str, *, seconds: float = 1.0, picture: bool = False) -> UtteranceMaterial:
    wave_N = np.sin(np.arange(round(16000 * seconds)) / 7).astype(np.float32) / 2
    aligned = [(0.0, 0.5, "ONE"), (0.5, 1.0, "TWO")]
    feats = np.random.default_rng(0).normal(size=(98, 40))
    drawn = AlignedUtterance(name, wave_N, 16000, feats, 10.0, aligned, aligned, [(0.1, 0.9, "THREE")])
    return UtteranceMaterial(
        f"/data/{name}.wav, 1.00 s to 2.00 s", encode_clip(wave_N, 16000), drawn if picture else None
    )


def test_worst_utterances_can_be_heard_and_seen(tmp_path: Path) -> None:
    ref = {f"u{n:02d}": "one two three" for n in range(30)}
    found = score(ref, {name: "four" if n < 25 else text for n, (name, text) in enumerate(ref.items())})
    shown = {f"u{n:02d}": material(f"u{n:02d}", picture=n < 10) for n in range(20)}
    suspects = Suspects(
        [Suspect("u03", "alignment's confidence 0.50", "one *two* three", "four"), Suspect("u29", "why", "a", "")],
        30,
        40,
    )
    unknown = UnknownWords({"zebra": 2, "<b>": 5, **{f"w{n}": 1 for n in range(40)}}, 1000)
    shown["u29"] = material("u29")
    write_report(
        tmp_path / "r.html",
        Report(
            "t",
            "c",
            [System("dnn", found)],
            material=shown,
            suspects=suspects,
            unknown=unknown,
        ),
    )
    page, checker = (tmp_path / "r.html").read_text(encoding="utf-8"), check(tmp_path / "r.html")
    sounds = [address for address in checker.addresses if address.startswith("data:audio")]
    assert len(sounds) == 21 and all(len(sound) <= 100_000 for sound in sounds)
    decoded, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(sounds[0].partition(",")[2])))
    assert rate_hz == 16000 and abs(len(decoded) - 16000) < 3000
    assert page.count("<svg") == 10
    for piece in (
        "/data/u00.wav, 1.00 s to 2.00 s", "u00: 3 errors in 3 words", "dnn: 25 utterances have errors.", "recognised",
        "2 transcripts of test.", "one *two* three", "(nothing)", "Of 30 of 40 utterances of test", "12 more",
        "47 of 1,000 words of the references (4.7%) are outside the vocabulary", "<b>5", "zebra2",
    ):  # fmt: skip
        assert piece in checker.text, piece
    assert '<a href="#worst-3">u03</a>' in page and 'id="worst-3"' in page
    assert "THREE" in page  # what was recognised, below the alignment


def test_clips_are_left_out_where_they_are_too_long_or_too_many(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=60 * 16000).astype(np.float32) / 8
    assert encode_clip(noise, 16000) is None
    found = encode_clip(noise[: 5 * 7000], 7000)  # a rate that MP3 does not have
    assert found is not None and found.kind == "audio/flac"
    sound = Clip("audio/mpeg", b"x" * 70_000)
    shown = within_limit({f"u{n}": UtteranceMaterial(f"{n}.wav", sound) for n in range(30)})
    kept = [name for name, each in shown.items() if each.clip]
    assert kept == [f"u{n}" for n in range(21)] and list(shown) == [f"u{n}" for n in range(30)]
    assert sum(len(each.clip.address) for each in shown.values() if each.clip) <= 2_000_000
    assert shown["u29"].place == "29.wav"


def test_every_term_is_explained_where_it_is_used_and_only_there(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", a_report())
    text = check(tmp_path / "r.html").text.partition("Terms")[2]
    for term in ("WER", "95 % interval", "p against best", "frame accuracy", "senone", "loss", "acoustic scale"):
        assert f"\n{term}" in text or term in text, term
    assert "staleness" not in text and "PER" not in text
    write_report(tmp_path / "r.html", Report("t", "c", [System("x", score({"u": "a"}, {"u": "b"}))]))
    terms = check(tmp_path / "r.html").text.rpartition("Terms")[2]
    assert "word error rate" in terms and "frame accuracy" not in terms


def test_same_report_same_bytes(tmp_path: Path) -> None:
    report = a_report()  # once: its environment names the commit, which others may move
    for name in ("a", "b"):
        write_report(tmp_path / name, report)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
