"""The page of an alignment: its links, its words, and a click in Chromium where there is one."""

import html
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile

from speech3.evaluate.alignment_page import Checked, drawn, write_alignment_page
from speech3.hmm.alignment.times import Segment

RATE_HZ = 16000
WORDS = [Segment(1.2, 1.5, "salt"), Segment(1.5, 1.9, "R&B")]
PHONES = [Segment(1.2, 1.3, "s"), Segment(1.3, 1.5, "o"), Segment(1.5, 1.9, "r")]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "my data").mkdir()
    (tmp_path / "out").mkdir()
    wave = np.random.default_rng(1).normal(0, 0.1, 3 * RATE_HZ).astype(np.float32)
    soundfile.write(tmp_path / "my data" / "a #1.wav", wave, RATE_HZ)
    picture = drawn("a", wave[RATE_HZ : 2 * RATE_HZ], RATE_HZ, PHONES, WORDS, start_s=1.0)
    doubtful = [
        Checked(
            "a", "ann", "1 of 2 words doubtful", "../my data/a #1.wav", 1.0, 2.0, WORDS, "salt *R&B*", 0.4, picture
        ),
        Checked("b", "ann", "too short", "", 0.0, 1.0, [], "<unk> said", None),
    ]
    write_alignment_page(tmp_path / "out" / "index.html", "Alignment of x", ["1 of 2"], doubtful, [])
    return tmp_path / "out" / "index.html"


def test_links_words_and_times(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (source,) = re.findall(r'<audio [^>]*src="([^"]*)"', text)
    place, _, times = html.unescape(source).partition("#t=")
    assert (page.parent / unquote(place)).resolve().is_file() and times == "1.000,2.000"
    buttons = re.findall(r'data-start="([\d.]+)" data-end="([\d.]+)">([^<]*)<', text)
    assert [(float(a), float(b), html.unescape(w)) for a, b, w in buttons] == [
        (word.start_s, word.end_s, word.label) for word in WORDS
    ]
    (marked,) = re.findall(r"<mark><button[^>]*>([^<]*)</button></mark>", text)
    assert html.unescape(marked) == "R&B" and "&lt;unk&gt; said" in text and "<unk>" not in text
    assert text.index("salt") < text.index("&lt;unk&gt;")
    assert text.count("<svg") == 1 and not re.findall(r'(?:src|href)="https?:', text)


def test_a_click_on_a_word_plays_it(page: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium")
    # The script clicks the second word, and writes what the page did into an attribute.
    script = """<script>
    const sound = document.querySelector("audio");
    sound.play = () => { document.body.dataset.played = sound.currentTime.toFixed(2); return Promise.resolve(); };
    sound.addEventListener("loadedmetadata", () => {
      document.body.dataset.length = sound.duration.toFixed(2);
      document.querySelectorAll("button.word")[1].click();
      document.querySelector("summary").click();
      document.body.dataset.folded = !document.querySelector("details").open;
    });
    </script>"""
    copy = page.with_name("clicked.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", f"--user-data-dir={page.parent}/profile", "--virtual-time-budget=10000"]
    command = [chromium, *options, "--allow-file-access-from-files", "--dump-dom", copy.as_uri()]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("Chromium does not start here")
    if "<body" not in found.stdout:
        pytest.skip(f"Chromium shows nothing here: {found.stderr[-200:]}")
    body = found.stdout[found.stdout.index("<body") :].split(">")[0]
    assert 'data-length="3.00"' in body and 'data-played="1.50"' in body and 'data-folded="true"' in body
