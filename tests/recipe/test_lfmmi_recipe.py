"""A recipe's LF-MMI system, from its keys to its error rate."""

import re
from pathlib import Path

import pytest
import soundfile

from speech3.config import CnnTdnnConfig, DecodeConfig, RecipeConfig, TdnnConfig, load_config, shipped
from speech3.data.datadir import read_datadir
from speech3.data.stats import lengths_s
from speech3.errors import MismatchError, SettingError, Speech3Error
from speech3.frames.packed import open_packed
from speech3.hmm.alignment.times import read_ctm
from speech3.recipe.costs import Speech, expected_costs
from speech3.recipe.experiment import open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.stages import config_of
from speech3.runtime import read_metrics
from speech3.runtime.files import read_json

DIGITS = shipped("recipes") / "digits" / "recipe.yaml"
# What LF-MMI adds to a recipe, in order.
STEPS = (
    "features/fbank40_utt",
    "hmm/lfmmi",
    "graph/lfmmi_hmm",
    "train/lfmmi.frames",
    "train/lfmmi",
    "decode/lfmmi",
)


def test_keys_of_the_group_change_its_presets():
    recipe = load_config(RecipeConfig, DIGITS, ["lfmmi={}"])
    assert isinstance(recipe.lfmmi.model, CnnTdnnConfig)
    assert recipe.lfmmi.training.objective == "lfmmi"
    smaller = load_config(RecipeConfig, DIGITS, ["lfmmi.model.width=128", "lfmmi.training.max_epochs=3"]).lfmmi
    assert smaller.model.width == 128
    assert smaller.model.prefinal == recipe.lfmmi.model.prefinal
    assert smaller.training == recipe.lfmmi.training.model_copy(update={"max_epochs": 3})
    other = load_config(RecipeConfig, DIGITS, ["lfmmi.model=tdnn", "lfmmi.model.two_outputs=true"]).lfmmi
    assert type(other.model) is TdnnConfig
    assert load_config(RecipeConfig, DIGITS, ["lfmmi={}", "lfmmi=null"]).lfmmi is None
    with pytest.raises(SettingError, match=r"unknown key 'lfmmi\.leafs'"):
        load_config(RecipeConfig, DIGITS, ["lfmmi.leafs=3"])


def test_its_steps_come_after_what_they_need(tmp_path: Path):
    plain = open_experiment("digits", tmp_path, None, ["lfmmi=null"], "")
    with_it = open_experiment("digits", tmp_path, None, ["lfmmi.adapted=true"], "")
    names = [step.name for step in planned_steps(with_it)]
    for step in planned_steps(with_it):
        assert all(names.index(needed) < names.index(step.name) for needed in step.needs)
    new = {
        *STEPS,
        "adapted/words",
        "adapted/sat_lfmmi.frames",
        "adapted/sat_lfmmi",
        "adapted/sat_lfmmi.decode",
        "adapted/lfmmi_mean",
        "adapted/lfmmi_mean.decode",
    }
    assert set(names) - {step.name for step in planned_steps(plain)} == new
    assert with_it.systems == (*plain.systems, "sat_lfmmi", "lfmmi", "lfmmi_mean")
    # It has the senones and the graph of lfmmi; there is none without SAT, or with a network to start from.
    assert with_it.hmm_of("sat_lfmmi") == "lfmmi_hmm" and with_it.feature_preset("sat_lfmmi") == "fbank40_utt"
    assert with_it.hmm_of("lfmmi_mean") == "lfmmi_hmm" and with_it.feature_preset("lfmmi_mean") == "fbank40_utt"
    for key, need in (
        ("hmm.sat=null", "hmm.sat"),
        ("lfmmi.model=tdnn", "lfmmi.model=cnn_tdnn"),
        ("hmm.flat_start=lfmmi", "hmm.sat"),
    ):
        with pytest.raises(SettingError, match=f"lfmmi.adapted=true: needs {need};"):
            open_experiment("digits", tmp_path, None, ["lfmmi.adapted=true", key], "")
    costs = expected_costs(with_it, Speech(1.0, 0.1, 0.1))
    assert costs["adapted/sat_lfmmi"].seconds == costs["train/lfmmi"].seconds
    assert costs["adapted/lfmmi_mean.decode"] == costs["decode/lfmmi"]
    assert costs["adapted/sat_lfmmi.frames"].size == 2.1 * 360_000 * 80 * 4
    # A network that learns from the mean of the two has the frames of the one.
    taught = open_experiment("digits", tmp_path, None, ["lfmmi.adapted=true", "lfmmi.taught=true"], "")
    steps = {step.name: step for step in planned_steps(taught)}
    assert set(steps) - set(names) == {"adapted/lfmmi_taught", "adapted/lfmmi_taught.decode"}
    assert set(steps["adapted/lfmmi_taught"].needs) == {"adapted/sat_lfmmi.frames", "adapted/lfmmi_mean"}
    assert taught.systems == (*with_it.systems, "lfmmi_taught") and taught.hmm_of("lfmmi_taught") == "lfmmi_hmm"
    more = expected_costs(taught, Speech(1.0, 0.1, 0.1))["adapted/lfmmi_taught"]
    assert more.seconds > costs["adapted/sat_lfmmi"].seconds
    more_of_it = ["lfmmi.adapted=true", "lfmmi.taught=true", "lfmmi.training.lfmmi.teaching=0.5"]
    shares = {step.name: step for step in planned_steps(open_experiment("digits", tmp_path, None, more_of_it, ""))}
    key = "lfmmi.training.lfmmi.teaching"
    assert {name for name, step in shares.items() if "lfmmi.training" in step.config and key not in step.open_keys} == {
        "adapted/lfmmi_taught"
    }
    for keys in (
        ["lfmmi.taught=true"],
        ["lfmmi={}", "lfmmi.training.lfmmi.teacher=x"],
        ["lfmmi={}", "lfmmi.training.lfmmi.teaching=0.5"],
    ):
        with pytest.raises(SettingError, match=keys[-1].split("=")[0]):
            open_experiment("digits", tmp_path, None, keys, "")


def test_a_flat_start_without_gmms_trains_nothing_else_on_senones(tmp_path: Path):
    flat = ["hmm.flat_start=lfmmi", "lfmmi={}"]
    experiment = open_experiment("digits", tmp_path, None, [*flat, "flat.training.max_epochs=3"], "")
    assert experiment.recipe.flat.training.labels == "words"
    assert experiment.recipe.flat.training.max_epochs == 3
    names = [step.name for step in planned_steps(experiment)]
    for step in planned_steps(experiment):
        assert all(names.index(needed) < names.index(step.name) for needed in step.needs)
    assert experiment.systems == ("lfmmi",)
    usual = {step.name for step in planned_steps(open_experiment("digits", tmp_path, None, ["lfmmi={}"], ""))}
    assert set(names) - usual == {"hmm/flat.frames", "hmm/flat"}
    assert usual - set(names) == {
        "features/fbank40_d2_utt",
        "hmm/mono",
        "hmm/tri",
        "graph/tri",
        "train/tri.frames",
        "train/dnn",
        "decode/tri",
        "decode/dnn",
        "hmm/lda",
        "hmm/sat",
        "graph/lda",
        "graph/sat",
        "decode/lda",
        "decode/sat",
        "adapted/features",
        "adapted/words",
        "adapted/align",
        "adapted/sat.frames",
        "adapted/sat_dnn",
        "adapted/sat_dnn.decode",
    }
    assert experiment.alignment(experiment.bootstrap, "dev") == tmp_path / "flat" / "align" / "dev"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["hmm.flat_start=lfmmi", "lfmmi=null"], r"lfmmi=\{\}"),
        (["hmm.flat_start=lfmmi", "lfmmi={}", "augment=noisy"], "augment=null"),
        (["hmm.flat_start=monophones"], "hmm.flat_start"),
        (["flat.training=lfmmi"], "flat.training.*numerators=transcripts"),
        (["flat.leaves=3"], r"unknown key 'flat\.leaves'; known here: longest_s, model, training"),
    ],
)
def test_what_a_flat_start_cannot_have_is_named(overrides: list[str], message: str):
    with pytest.raises(Speech3Error, match=message):
        load_config(RecipeConfig, DIGITS, overrides)


def test_is_left_out_where_there_is_too_little_speech(speech3, tiny, experiment: Path, tmp_path: Path):
    much = ("lfmmi.min_minutes=500",)
    process = speech3("recipe", "digits", "--out", experiment, *tiny, *much, "--dry-run", "--from", "score")
    would_run = re.findall(r"^(\S+): would run", process.stdout, re.M)
    assert "lfmmi" not in process.stdout and would_run == ["score", "score/boundaries", "report"], process.stderr
    assert re.search(r"no LF-MMI system: .*\d+ min.* of speech.* lfmmi.min_minutes is 500", process.stderr)
    process = speech3("recipe", "digits", "--out", experiment, *tiny, "lfmmi.min_minutes=0.1", "--dry-run")
    assert "train/lfmmi: would run" in process.stdout and not process.stderr
    # Before the stage `data` has run, the amount of speech is not known.
    process = speech3("recipe", "digits", "--out", tmp_path / "new", *tiny, *much, "--dry-run")
    assert "train/lfmmi: would run" in process.stdout
    assert process.stdout.startswith(
        "The steps of lfmmi run only if there are at least 500 minutes to train on (lfmmi.min_minutes)."
    )
    assert not (tmp_path / "new" / "data").exists()


def test_frames_depend_on_their_features_and_on_augmented_ones(tmp_path: Path):
    for features, name in (("fbank40_d2", "train/tri.frames"), ("fbank40_utt", "train/tri_fbank40_utt.frames")):
        overrides = ["lfmmi={}", "augment=mixed", f"features={features}", "model=dnn_small"]
        e = open_experiment("minilibri", tmp_path / "out", tmp_path / "in", overrides, "")
        needs = {step.name: set(step.needs) for step in planned_steps(e)}
        assert {"features/augmented", f"features/{features}"} <= needs[name]
        assert {"features/augmented", "features/fbank40_utt"} <= needs["train/lfmmi.frames"]


def test_features_of_one_name_and_models_made_here_are_refused(tmp_path: Path):
    other = tmp_path / "mfcc13_d2.yaml"
    other.write_text("kind: mfcc\nnum_ceps: 20\n")
    e = open_experiment("minilibri", tmp_path / "out", tmp_path / "in", [f"features={other}"], "")
    with pytest.raises(MismatchError, match=r"mfcc13_d2, \S+mfcc13_d2\.yaml"):
        planned_steps(e)
    with pytest.raises(Speech3Error, match=r"lm\.arpa=\S+: is made by this recipe; copy it"):
        open_experiment(
            "minilibri",
            tmp_path / "out",
            tmp_path / "in",
            ["lm.order=null", f"lm.arpa={tmp_path}/out/lm/lm.arpa.gz"],
            "",
        )
    with pytest.raises(Speech3Error, match=r"^model\.channels=3: features of 40 values"):
        planned_steps(
            open_experiment("minilibri", tmp_path / "out", tmp_path / "in", ["model=cnn", "features=fbank40_utt"], "")
        )


def test_frequencies_that_are_not_mel_bins_are_not_warped(tmp_path: Path):
    e = open_experiment(
        "minilibri",
        tmp_path / "out",
        tmp_path / "in",
        ["lfmmi.features=plp13_pitch1_d2", "features=mfcc13_d2_cmvn", "model=tdnn"],
        "",
    )
    for training in (config_of(e, "lfmmi").training, e.training):
        assert (training.frequency_warp, training.frequency_masks, training.speeds, training.time_masks) == (
            0,
            0,
            (),
            2,
        )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lfmmi.features=fbank40_d2"], r"lfmmi\.model: .*lfmmi\.features=fbank40_d2 has deltas.*lfmmi\.model=tdnn"),
        (
            ["model=cnn_tdnn", "model.subsampling=3", "features=fbank40_utt"],
            r"^model\.subsampling=3: only for LF-MMI.*lfmmi\.model.* remove the key",
        ),
        (["model.two_outputs=true"], r"^model\.two_outputs=true: only for LF-MMI.* remove the key"),
        (["model=tdnn_lstm"], r"^model: .* features=fbank40_d2 has deltas.* model\.convolutions=\[\]"),
        (["model=cnn_tdnn"], r"^model: .* features=fbank40_d2 has deltas.* model=tdnn"),
        (
            ["hmm.flat_start=lfmmi", "flat.model=cnn_tdnn", "lfmmi.model=dnn", "lfmmi.features=fbank40_pitch"],
            r"flat\.model: .* has pitch",
        ),
    ],
)
def test_networks_that_do_not_fit_their_features_or_senones_are_refused_before_anything_runs(
    tmp_path: Path, overrides, message: str
):
    e = open_experiment("minilibri", tmp_path / "out", tmp_path / "in", ["lfmmi={}", *overrides], "")
    with pytest.raises(Speech3Error, match=message):
        planned_steps(e)


SMALL = (
    "lfmmi.leaves=70",
    "lfmmi.extra_lm_states=20",
    "lfmmi.model.layers=2",
    "lfmmi.model.width=64",
    "lfmmi.model.bottleneck=16",
    "lfmmi.model.prefinal=32",
    "lfmmi.passes=4",
    "lfmmi.training.minibatch=1200",
    "lfmmi.min_minutes=0.1",
)


@pytest.mark.slow
def test_from_sound_to_an_error_rate_beside_the_dnn_then_aligned_exported_and_used_without_the_recipe(
    speech3, tiny, mine: Path, tmp_path: Path
):
    process = speech3("recipe", "digits", "--out", mine, *tiny, *SMALL, "jobs=2")
    assert process.returncode == 0, process.stderr
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert ran == [*STEPS, "score", "report"]
    assert re.search(r"^digits lfmmi WER \d+\.\d\d \[", process.stdout, re.M)
    assert re.search(r"^  4 passes over \d minutes of speech \(lfmmi\.passes\)$", process.stderr, re.M)
    epochs = [record for record in read_metrics(mine / "lfmmi" / "metrics.jsonl") if record["event"] == "epoch"]
    assert len(epochs) == 4 and all((epoch["world"], epoch["workers"]) == ("shared", 2) for epoch in epochs)
    assert epochs[-1]["heldout_per"] < 0.85
    assert read_json(mine / "lfmmi" / "decode.json")["acoustic_scale"] in DecodeConfig().lfmmi_acoustic_scales
    assert ">lfmmi</td>" in (mine / "report.html").read_text()
    assert "LF-MMI" in (mine / "lfmmi" / "MODEL_CARD.md").read_text()
    assert open_packed(mine / "frames" / "lfmmi" / "train.frames").info["speed_perturb"] == []
    # Networks that `speech3 train` trains on these outputs are tuned as this one.
    assert read_json(mine / "lfmmi_hmm" / "tuning.json") == read_json(mine / "lfmmi" / "tuning.json")

    test = mine / "data" / "test"
    aligned = speech3("align", mine / "lfmmi", test, tmp_path / "aligned", "--jobs", "1")
    assert aligned.returncode in (0, 1), (
        aligned.stderr
    )  # it may fail on more than 5 % of them, after so little training
    ends = {u: track[-1].end_s for u, track in read_ctm(tmp_path / "aligned" / "phones.ctm").items()}
    durations = lengths_s(read_datadir(test))
    assert all(abs(end - durations[utterance]) < 0.05 for utterance, end in ends.items())
    exported = speech3("export", mine / "lfmmi", tmp_path / "x.onnx")
    assert exported.returncode == 0, exported.stderr
    sounds = sorted((test / "wav").glob("*.wav"))[:3]
    texts = [speech3("transcribe", model, *sounds).stdout for model in (mine / "lfmmi", tmp_path / "x.onnx")]
    assert texts[0] == texts[1] != ""

    # Another language model: new graphs for the same networks, also where there is one core now.
    options = (*tiny, *SMALL, "lm.order=1")
    process = speech3("recipe", "digits", "--out", mine, *options, "--to", "decode")
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert process.returncode == 0 and "decode/lfmmi" in ran and not any(name.startswith("train/") for name in ran)
    for network, hmm in (("dnn", "tri"), ("lfmmi", "lfmmi_hmm")):
        assert (mine / network / "graph" / "HCLG.fst").samefile(mine / hmm / "graph" / "HCLG.fst")

    # A network that starts from this one, and self-training.
    (mine / "lfmmi").rename(tmp_path / "trained")
    (tmp_path / "more").mkdir()
    for sound in sounds:
        wave_S, rate_hz = soundfile.read(sound)
        soundfile.write(tmp_path / "more" / sound.name, 0.5 * wave_S, rate_hz)  # a copy would be left out
    more = ("lfmmi.passes=2", f"init={tmp_path / 'trained'}", f"untranscribed={tmp_path / 'more'}")
    process = speech3("recipe", "digits", "--out", mine, *options, *more, "untranscribed.confidence=0.99")
    assert process.returncode == 0, process.stderr
    assert re.search(r"^digits lfmmi WER", process.stdout, re.M) and "lfmmi_self" not in process.stdout
    assert re.search(r"starting from \S+trained/model.safetensors: the same \d+ senones, so all", process.stderr)
    assert re.search(r"untranscribed\.confidence=0\.99: none of the 3 utterances .*best has 0\.\d\d", process.stderr)
    none = ("untranscribed.confidence=0.99", "--from", "score", "--dry-run")
    process = speech3("recipe", "digits", "--out", mine, *options, *more, *none)
    assert process.returncode == 0 and "self/" not in process.stdout, process.stderr
    process = speech3("recipe", "digits", "--out", mine, *options, *more, "untranscribed.confidence=0")
    assert process.returncode == 0, process.stderr
    ran = re.findall(r"^\[\d+/\d+\] (\S+): .*, running$", process.stderr, re.M)
    assert ran == ["self/choose", "self/frames", "self/train", "self/decode", "score", "report"]
    assert re.search(r"^digits lfmmi_self WER \d+\.\d\d \[", process.stdout, re.M)
    packed = [open_packed(mine / "frames" / name / "train.frames") for name in ("lfmmi", "lfmmi_self")]
    chosen = (mine / "self" / "chosen.txt").read_text().splitlines()
    assert len(packed[1].offsets_U1) - len(packed[0].offsets_U1) == len(chosen) > 0
    process = speech3("recipe", "digits", "--out", mine, *options, *more[:2])
    assert process.returncode == 0, process.stderr
    assert ">lfmmi_self</td>" in (mine / "report.html").read_text(), "it is a system of an earlier run now"
