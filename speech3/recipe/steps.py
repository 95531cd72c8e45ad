"""Steps of a recipe: a finished step runs again only if its config, its inputs or a step that it needs has changed.

A step's fingerprint covers its own config, the names, sizes and times of its external inputs, and the fingerprints of
the steps it needs; if only the times of inputs differ, their content decides: a corpus that was copied, unpacked or
mounted again has other times and the same bytes. It is written to ``.done/`` when the step has finished, so a killed
step is started again (and resumes by itself, if it can). The file also records which run of the needed steps was used:
a step may run again with the same fingerprint (``--from``, or a lost output), and the recipe may be stopped before the
steps that need it run.

The directory that a step makes is never a user's own, and an earlier result stays until there is a new one. Steps run
in order, each on all cores that it can use.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from speech3.data import files_below
from speech3.errors import MachineError, MissingError, OccupiedError, SettingError, Speech3Error
from speech3.runtime import explained_disk_errors, progress, read_json, say, write_json

_READERS = 8  # threads; disks of networks answer slowly
_FILES, _RECORD = "files", "record.json"  # of a result that was put aside
_SHOWN, _LONGEST = 3, 40  # most changes that a reason names, and most characters of a value in it


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamp_of(path: Path) -> list[Any]:
    """Size and modification time of a file; names, sizes and times of all files below a directory."""
    if path.is_dir():
        return [[str(p.relative_to(path)), *stamp_of(p)] for p in sorted(files_below(path))]
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


@lru_cache
def content_of(path: Path, stamp: str) -> str:
    """A digest of the names and the content of a file or of all files below a directory; of no times.

    `stamp`: digest of `stamp_of`; as long as it is the same, the files are not read again.
    """
    files = sorted(files_below(path)) if path.is_dir() else [path]
    names = [os.path.relpath(file, path) for file in files]
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(progress(pool.map(_content, files), len(files), f"comparing the files of {path}"))
    return digest_of(json.dumps([names, found]))


def _content(path: Path) -> list[Any]:
    """Size and digest of a file; the digest is empty if it cannot be read, as the step that needs it will say."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
            return [os.fstat(file.fileno()).st_size, digest]
    except OSError:
        return [-1, ""]


def check_places(
    out: Path, sources: Mapping[str, Path | str | None], models: Mapping[str, Path | str | int | None]
) -> None:
    """Refuse sources that hold `out`, and language models that the recipe itself writes there.

    The keys are what comes before the path in a message: ``--source ``, ``lm.arpa``. Numbers are not paths.
    """
    for name, given in sources.items():
        if given and out.is_relative_to(Path(given).resolve()):
            raise OccupiedError(
                f"{out}: is inside {name}{Path(given).resolve()}, so every run would change its own input and start"
                " again; choose another --out"
            )
    for name, model in models.items():
        if isinstance(model, str | Path) and Path(model).resolve().is_relative_to(out / "lm"):
            raise OccupiedError(f"{name}={model}: is made by this recipe; copy it elsewhere, or choose another --out")


def check_owned(owned: Mapping[str, Path]) -> None:
    """Refuse to replace files that no step has made; `owned`: directories of steps that never ran, by their names."""
    for name, directory in owned.items():
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise OccupiedError(
                f"{directory}: exists, but was not made by a recipe, which would replace it ({name}); move it away, or"
                " choose another --out"
            )


def check_inputs(inputs: Sequence[Path], owned: Mapping[str, Path]) -> None:
    """Refuse inputs in directories that steps make anew; `owned`: these directories, by the names of their steps."""
    for path in inputs:
        for name, directory in owned.items():
            if path.resolve().is_relative_to(directory.resolve()):
                raise OccupiedError(
                    f"{path}: is in {directory}, which {name} makes anew; copy it elsewhere, or choose another --out"
                )


def put_aside(directory: Path, record: Path, aside: Path) -> None:
    """Move the result of a finished step, and the record that it is finished, to the directory `aside`."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    _move(directory, aside / _FILES)
    record.rename(aside / _RECORD)


def put_back(directory: Path, record: Path, aside: Path) -> bool:
    """Replace what a failed step has left by what was put aside; return whether there was anything."""
    if not (aside / _RECORD).exists():
        return False
    remove(directory, aside / "failed")
    _move(aside / _FILES, directory)
    (aside / _RECORD).rename(record)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def remove(directory: Path, trash: Path) -> None:
    """Remove a directory, which is first renamed to `trash`: if killed, no part of it is left in its place."""
    for each in (trash, directory):
        if each.is_symlink():
            each.unlink()  # what it points to is not ours
    if trash.exists():
        shutil.rmtree(trash, ignore_errors=True)
    _move(directory, trash)
    shutil.rmtree(trash, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    if source.exists() or source.is_symlink():
        try:
            source.rename(target)
        except OSError:  # the place where a disk is mounted, say
            shutil.rmtree(source, ignore_errors=True)


@dataclass(frozen=True)
class Step:
    """One step of a recipe."""

    name: str  # ``stage`` or ``stage/part``
    run: Callable[[], None]
    config: Any  # the settings that affect its result, as plain values, by the recipe's keys
    outputs: Sequence[Path]  # files or directories that exist when the step is done
    needs: Sequence[str] = ()  # names of the steps that must run before it
    inputs: Sequence[Path] = ()  # files or directories from outside the experiment
    # Directory that is made anew at each start of the step, but kept if the step was killed and can resume. That of a
    # finished run is put aside until the step has succeeded, and put back if it fails.
    owns: Path | None = None
    # Those whose values do not count, as they are not known before the amount of speech is (``model.width``), or do not
    # affect the result (``training.device``); with all keys below them.
    open_keys: Sequence[str] = ()
    elastic: Sequence[str] = ()  # keys that may change when the step was killed and resumes, although they count
    bulky: bool = False  # it is not put aside but removed at once: the disk may not hold it twice

    @property
    def stage(self) -> str:
        return self.name.partition("/")[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The values in `config`, by the recipe's keys."""
        return settings_of(self.config)


@dataclass(frozen=True)
class Plan:
    """A step with its fingerprint and the reason why it would run (empty: it is done).

    `inputs`: a hash of each input's size and time. `afresh`: do not use the files of a killed run.
    """

    step: Step
    fingerprint: str
    why: str
    inputs: Mapping[str, str]
    afresh: bool = False


def settings_of(config: Any) -> dict[str, Any]:
    """The values in a step's config, by the recipe's keys."""
    return dict(_flat(json.loads(json.dumps(config, default=str))))


def recorded_settings(out: Path, name: str) -> dict[str, Any]:
    """The settings with which a finished step ran."""
    found: dict[str, Any] = read_json(_path(out, name)).get("settings", {})
    return found


def recorded_inputs(out: Path, name: str) -> list[str]:
    """The external inputs of a finished step."""
    return list(read_json(_path(out, name)).get("inputs", {}))


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested mappings, by their keys joined with dots."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key and name else key or name)
    else:
        yield key, value


def make_plan(steps: Sequence[Step], out: Path, from_stage: str | None, to: str | None) -> list[Plan]:
    """Decide which steps run.

    Parameters
    ----------
    from_stage
        Steps of this and later stages run again, even if they are done; earlier steps must be done.
    to
        A stage: later ones are left out. Or a step, ``decode/tri``: what it does not need is left out.

    Raises
    ------
    Speech3Error
        A stage or step is unknown, an input is missing, or a stage before `from_stage` is not done.
    """
    stages = list(dict.fromkeys(step.stage for step in steps))
    if from_stage is not None and from_stage not in stages:
        raise SettingError(f"no stage {from_stage!r}; the stages are: {', '.join(stages)}")
    chosen = _up_to(steps, to, stages)
    first = stages.index(from_stage) if from_stage else 0
    if first > max(stages.index(step.stage) for step in chosen):
        raise SettingError(f"--from {from_stage} comes after --to {to}; the stages are: {', '.join(stages)}")
    check_owned({step.name: step.owns for step in steps if step.owns and not _known(step, out)})
    check_inputs([path for step in steps for path in step.inputs], {s.name: s.owns for s in steps if s.owns})
    plans: dict[str, Plan] = {}
    for step in chosen:
        for path in step.inputs:
            if not path.exists():
                raise MissingError(f"{path}: no such file or directory (needed by {step.name})")
        parents = [plans[name] for name in step.needs]
        stamps = {str(path): stamp_of(path) for path in step.inputs}
        fingerprints = [parent.fingerprint for parent in parents]
        text = json.dumps([step.name, step.config, list(stamps.items()), fingerprints], sort_keys=True, default=str)
        fingerprint = digest_of(text)
        contents = {path: digest_of(json.dumps(stamp)) for path, stamp in stamps.items()}
        why = _why(step, out, fingerprint, contents, parents)
        if not why:  # of what the step has used: times of its inputs, and keys that do not count, may differ now
            fingerprint = read_json(_path(out, step.name))["fingerprint"]
        again = from_stage is not None and first <= stages.index(step.stage)
        if from_stage and not again and why:
            raise SettingError(f"--from {from_stage}: {step.name} comes before it and must run first ({why})")
        if again:
            why = why or "requested by --from"
        plans[step.name] = Plan(step, fingerprint, why, contents, afresh=again)
    return list(plans.values())


def _up_to(steps: Sequence[Step], to: str | None, stages: Sequence[str]) -> list[Step]:
    """The steps before the first of a later stage than `to`; if it is a step, it and those that it needs."""
    if to is None:
        return list(steps)
    if to in stages:
        last = stages.index(to)
        return list(takewhile(lambda step: stages.index(step.stage) <= last, steps))
    needed = {to}
    for step in reversed(steps):
        needed |= {*step.needs} if step.name in needed else set()
    if to not in (step.name for step in steps):
        raise SettingError(f"no stage {to!r}; the stages are: {', '.join(stages)}")
    return [step for step in steps if step.name in needed]


def is_done(steps: Sequence[Step], out: Path, stage: str) -> bool:
    """Whether no step of this stage, or of an earlier one, would run."""
    return not any(plan.why for plan in make_plan(steps, out, None, stage))


def _why(step: Step, out: Path, fingerprint: str, inputs: Mapping[str, str], parents: Sequence[Plan]) -> str:
    if not _path(out, step.name).exists():
        return "not done yet"
    done = read_json(_path(out, step.name))
    if not _is_whole(done):
        return "its record is of another release"
    if done["fingerprint"] != fingerprint and (changes := _changes(done, step, inputs)):
        return ", ".join(changes[:_SHOWN] + [f"and {len(changes) - _SHOWN} more"] * (len(changes) > _SHOWN))
    missing = [str(path) for path in step.outputs if not path.exists()]
    if missing:
        return f"{missing[0]} is missing"
    again = [plan.step.name for plan in parents if plan.why]
    if again:
        return f"{again[0]} runs again"
    for name, run in _runs_of(out, step.needs).items():
        if name not in done["used"]:
            return f"now needs {name}"  # features of another preset, say, which another step has extracted
        if done["used"][name] != run:
            return f"{name} has run again"
    return ""


def _changes(done: Mapping[str, Any], step: Step, inputs: Mapping[str, str]) -> list[str]:
    """The inputs and keys that differ from those of the finished run."""
    used = done["inputs"]
    return [
        *(f"{path} {'changed' if path in used else 'is new'}" for path in inputs if _differs(done, path, inputs[path])),
        *_changed_settings(done["settings"], step.settings, step.open_keys),
        *(f"{path} is no longer used" for path in used if path not in inputs),
    ]


def _differs(done: Mapping[str, Any], path: str, stamp: str) -> bool:
    """Whether an input differs from that of the finished run in more than its times."""
    if done["inputs"].get(path) == stamp:
        return False
    content = done.get("contents", {}).get(path)  # records of earlier releases have none
    return content is None or content != content_of(Path(path), stamp)


def _contents(inputs: Mapping[str, str]) -> dict[str, str]:
    return {path: content_of(Path(path), stamp) for path, stamp in inputs.items()}


def _note_times(plan: Plan, out: Path) -> None:
    """Record the times of the inputs of a step that is done, if they are others."""
    done = read_json(_path(out, plan.step.name))
    other = [path for path, stamp in plan.inputs.items() if done["inputs"].get(path) != stamp]
    if other:
        say(f"{', '.join(other)}: other times, the same content as before; what was made from it is kept")
        write_json(_path(out, plan.step.name), {**done, "inputs": plan.inputs, "contents": _contents(plan.inputs)})


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, Any], open_keys: Sequence[str]) -> list[str]:
    still_open = tuple(f"{key}." for key in open_keys)
    keys = [key for key in dict.fromkeys((*before, *now)) if not f"{key}.".startswith(still_open)]
    differ = [key for key in keys if before.get(key) != now.get(key)]
    return [f"{key or 'config'} {_short(before.get(key))} -> {_short(now.get(key))}" for key in differ]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _runs_of(out: Path, names: Sequence[str]) -> dict[str, Any]:
    return {name: ended_ns(out, name) for name in names}


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record has all fields; those of other releases may lack some."""
    return {"fingerprint", "used", "settings", "inputs"} <= record.keys()


def _path(out: Path, name: str) -> Path:
    """The record of a finished step."""
    return out / ".done" / f"{name.replace('/', '.')}.json"


def _begun(out: Path, step: Step) -> Path:
    return _path(out, step.name).with_suffix(".begun")


def _known(step: Step, out: Path) -> bool:
    return any(path.exists() for path in (_path(out, step.name), _begun(out, step), _aside(out, step)))


def _aside(out: Path, step: Step) -> Path:
    """Backup of the previous result, its files and its record, while the step runs again."""
    return _path(out, step.name).with_suffix(".before")


def up_to_date(out: Path, name: str) -> bool:
    """Whether a step has finished and no step that it depends on, directly or indirectly, has started again since."""
    if not _path(out, name).exists():
        return False
    record = read_json(_path(out, name))
    used = record.get("used", {})
    return _is_whole(record) and all(up_to_date(out, each) and ended_ns(out, each) == run for each, run in used.items())


def ended_ns(out: Path, name: str) -> Any:
    """The time at which a finished step ended, in nanoseconds since 1970, which identifies the run."""
    return read_json(_path(out, name)).get("ended_ns")


def seconds_of(out: Path, name: str) -> float:
    """The time that a finished step took, in seconds."""
    return float(read_json(_path(out, name))["seconds"])


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    # A file, opened for writing, and not the directory: NFS has locks between hosts for such files only.
    with explained_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock_file = (out / ".lock").open("w", encoding="utf-8")
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OccupiedError(
                f"{out}: another run is using this directory; wait until it ends, or choose another --out"
            ) from error
        yield


def run_plan(plans: Sequence[Plan], out: Path, first: int = 0, end: int | None = None) -> None:
    """Run the plans from `first` up to `end` in order, skipping steps that are done.

    Raises `Speech3Error`: another run is using `out`, or a step ended without writing its outputs; also what the steps
    raise.
    """
    chosen = list(enumerate(plans, 1))[first:end]
    with _alone(out):
        for number, plan in chosen:
            head = f"[{number}/{len(plans)}] {plan.step.name}"
            if not plan.why:
                _note_times(plan, out)
                say(f"{head}: already done")
            else:
                say(f"{head}: {plan.why}, running")
                say(f"{head}: {_run(plan, out):.1f} s")


def _run(plan: Plan, out: Path) -> float:
    """Run a step and record it as finished; return the seconds that it took."""
    step, start = plan.step, time.monotonic()
    _begin(plan, out)
    try:
        step.run()
    except Speech3Error:
        if step.owns and put_back(step.owns, _path(out, step.name), _aside(out, step)):
            _begun(out, step).unlink()
            say(f"{step.name}: failed; restored the earlier {step.owns}")
        raise
    missing = [str(path) for path in step.outputs if not path.exists()]
    if missing:
        raise MachineError(f"{step.name} ended without writing {missing[0]}; please report this")
    seconds = time.monotonic() - start
    record = {**read_json(_begun(out, step)), "seconds": round(seconds, 2), "ended_ns": time.time_ns()}
    write_json(_path(out, step.name), record)
    _begun(out, step).unlink()
    shutil.rmtree(_aside(out, step), ignore_errors=True)
    return seconds


def _begin(plan: Plan, out: Path) -> None:
    begun = _begun(out, plan.step)
    record = {
        "fingerprint": plan.fingerprint,
        "used": _runs_of(out, plan.step.needs),
        "settings": plan.step.settings,
        "inputs": plan.inputs,
        "contents": _contents(plan.inputs),
    }
    left = read_json(begun) if begun.exists() and not plan.afresh else {}
    killed = all(left.get(key) == record[key] for key in ("fingerprint", "used")) or _continues(left, record, plan.step)
    marker, aside, owns = _path(out, plan.step.name), _aside(out, plan.step), plan.step.owns
    if owns and not killed:
        if left and (changes := _changed_settings(left.get("settings", {}), plan.step.settings, ())):
            say(f"  begins again, as it cannot resume with {', '.join(changes[:_SHOWN])}")
        if marker.exists() and not plan.step.bulky:
            put_aside(owns, marker, aside)
        else:
            remove(owns, marker.with_suffix(".removed"))
    marker.unlink(missing_ok=True)
    write_json(begun, record)


def _continues(left: Mapping[str, Any], record: Mapping[str, Any], step: Step) -> bool:
    """Whether a killed step differs from what it would be now in no more than keys that may change when it resumes."""
    alike = _is_whole(left) and all(left[key] == record[key] for key in ("inputs", "used"))
    return bool(step.elastic and alike) and not _changed_settings(left["settings"], record["settings"], step.elastic)


def describe_plan(plans: Sequence[Plan], expected: Mapping[str, str] | None = None) -> str:
    """The plan as text, a line for each step: whether it would run and why, and what is expected of it."""
    lines = []
    for plan in plans:
        name, cost = plan.step.name, (expected or {}).get(plan.step.name, "")
        lines.append(f"{name}: {f'would run ({plan.why}){cost}' if plan.why else 'done'}")
    return "\n".join(lines)
