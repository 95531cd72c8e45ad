"""tests/gpu.sh without a GPU: a part that fails or hangs does not stop the others; parts left out are named."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec

def there(_, name, *more):
    return None if name.split(".")[0] in {names!r} else find(name, *more)

PathFinder.find_spec = classmethod(there)
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["tests/gpu.sh", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.fixture
def gpu_py(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("speech3_gpu", ROOT / "tests" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look up their annotations there
    spec.loader.exec_module(module)
    return module


def test_all_tests_of_cuda_code_are_in_a_part(gpu_py):
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*_cuda.py")}
    assert files <= {file for part in gpu_py.PARTS for file in part.run}


@pytest.mark.slow
def test_parts_and_their_summary(gpu_py, monkeypatch, tmp_path, capfd):
    tests = {
        "wrong": "def test_it():\n    print('as it', 'was')\n    assert 1 == 2\n",
        "hanging": "import time\ndef test_it():\n    time.sleep(100)\n",
        "lacking": "import pytest\npytest.importorskip('no_such_package')\ndef test_it():\n    pass\n",
        "right": 'def test_it(gpu):\n    print(\'\\n{"name": "x", "value": 1}\')\n    assert gpu == \'cpu\'\n',
    }
    for name in ("conftest", "small_data", "small_language"):
        (tmp_path / f"{name}.py").write_text((ROOT / "tests" / f"{name}.py").read_text())
    parts = []
    for name, text in tests.items():
        (tmp_path / f"test_gpu_{name}.py").write_text(text)
        files = ("-s", str(tmp_path / f"test_gpu_{name}.py"))
        parts.append(gpu_py.Part(name, "correctness", name, files, 2 if name == "hanging" else 120, ("torch",)))
    parts.append(gpu_py.Part("poor", "speed", "poor", ("-",), 9, ("torch", "no_such_module")))
    monkeypatch.setattr(gpu_py, "PARTS", tuple(parts))
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--log", str(tmp_path / "log")])
    assert gpu_py.main() == 1
    printed = capfd.readouterr().out
    summary = printed[printed.index("summary: ") :].splitlines()
    assert summary[0] == f"summary: cpu, torch {torch.__version__}: 1 ok, 2 failed, 2 left out"
    words = {line.split()[0]: line[12:22].strip() + "|" + line.split(" s ", 1)[1].strip() for line in summary[1:]}
    assert list(words) == [*tests, "poor"]
    assert words["wrong"] == "failed|exit status 1" and "assert 1 == 2" in printed
    assert words["hanging"].startswith("failed|ended after 2 s")
    assert words["lacking"].startswith("left out|") and "no_such_package" in words["lacking"]
    assert words["right"].startswith("ok|1 passed") and '\n{"name": "x", "value": 1}\n' in printed
    assert words["poor"] == "left out|no no_such_module"
    assert "as it was" in (tmp_path / "log").read_text()
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--minutes", "0.1", "--only", "right"])
    assert gpu_py.main() == 0
    assert "no time left" in capfd.readouterr().out


def test_every_part_names_files_that_are_there(gpu_py):
    assert len({part.name for part in gpu_py.PARTS}) == len(gpu_py.PARTS)
    for part in gpu_py.PARTS:
        assert (ROOT / part.run[0]).exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_a_message_says_why():
    process = run()
    assert process.returncode == 2
    assert process.stdout.count("\n") == 1 and "sees no GPU" in process.stdout


@pytest.mark.slow
def test_parts_on_the_cpu_and_packages_that_a_gpu_machine_lacks(tmp_path):
    """LF-MMI needs only those packages that `.wheels` brings; without pydantic, what needs nothing but torch runs."""
    lacking = ["kaldi_native_fbank", "kaldi_decoder", "ray", "hypothesis", "sentencepiece", "matplotlib", "tensorboard"]
    lacking += ["torchaudio", "espeakng_loader", "onnx"]
    for names, part, result in ((lacking, "lfmmi", "ok"), (["pydantic"], "machine,lfmmi", "left out")):
        (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(names=names))
        process = run("--device", "cpu", "--only", part, PYTHONPATH=str(tmp_path))
        assert process.returncode == 0, process.stdout + process.stderr
        last = process.stdout.splitlines()[-1]
        assert last.startswith("lfmmi") and result in last
        assert result == "ok" or (last.endswith("no pydantic") and "1 ok, 0 failed, 1 left out" in process.stdout)
