"""Configs: the message about a fault names the file and the key; all shipped presets and recipes can be read."""

import re
from pathlib import Path

import pytest

from speech3.config import (
    AugmentConfig,
    CnnConfig,
    Config,
    DecodeConfig,
    DnnConfig,
    FeatureConfig,
    HmmConfig,
    LmConfig,
    LstmConfig,
    ModelConfig,
    NeuralLmConfig,
    RecipeConfig,
    TrainConfig,
    TrainingConfig,
    load_config,
    load_preset,
    parse,
    presets,
    read_yaml,
    reading as module,
    shipped,
)
from speech3.errors import SettingError, Speech3Error
from speech3.recipe.experiment import CORPORA

ROOT = Path(__file__).parents[1]
KINDS: dict[str, type[Config]] = {
    "augment": AugmentConfig,
    "features": FeatureConfig,
    "lm": NeuralLmConfig,
    "models": ModelConfig,
    "training": TrainingConfig,
}
PRESETS = [(kind, path.stem) for kind in KINDS for path in sorted((ROOT / "conf" / kind).glob("*.yaml"))]
RECIPES = sorted((ROOT / "recipes").glob("*/recipe.yaml"))
RECIPE = "corpus: digits\nmodel: dnn_small\ntraining: sgd\nlm: {order: 2}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_what_is_shipped_lies_in_the_checkout() -> None:
    assert shipped("conf") == ROOT / "conf" and shipped("recipes") == ROOT / "recipes"
    assert shipped("data") == ROOT / "data"
    assert {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()} == set(KINDS)
    assert all(presets(kind) for kind in KINDS) and presets("nothing") == []


def test_what_is_shipped_lies_in_the_package_where_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROOT", tmp_path / "speech3")
    assert shipped("conf") == tmp_path / "conf"
    (tmp_path / "speech3" / "_conf" / "models").mkdir(parents=True)
    (tmp_path / "speech3" / "_conf" / "models" / "mine.yaml").write_text("family: dnn\nwidth: 7\n")
    assert shipped("conf") == tmp_path / "speech3" / "_conf" and presets("models") == ["mine"]
    assert load_preset(ModelConfig, "models", "mine").width == 7


@pytest.mark.parametrize(("kind", "name"), PRESETS)
def test_every_preset_is_read(kind: str, name: str) -> None:
    assert name in presets(kind)
    config = load_preset(KINDS[kind], kind, name)
    assert load_preset(KINDS[kind], kind, str(ROOT / "conf" / kind / f"{name}.yaml")) == config
    assert parse(KINDS[kind], config.model_dump(), name) == config


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_every_recipe_is_read_and_names_presets_that_exist(path: Path) -> None:
    config = load_config(RecipeConfig, path)
    assert config.corpus in CORPORA
    for name in (config.features, config.hmm.features, config.hmm.aligner_features):
        assert load_preset(FeatureConfig, "features", name)
    written = read_yaml(path)
    if isinstance(written["model"], str):
        assert config.model == load_preset(ModelConfig, "models", written["model"])
    if isinstance(written["training"], str):
        assert config.training == load_preset(TrainingConfig, "training", written["training"])


def test_default_presets_exist() -> None:
    names = {
        HmmConfig().features,
        HmmConfig().aligner_features,
        RecipeConfig(corpus="x", lm=LmConfig(order=1)).features,
    }
    assert names <= set(presets("features"))


def test_unknown_keys_are_named_with_their_file_and_neighbours(recipe: Path) -> None:
    recipe.write_text(RECIPE + "sed: 2\nhmm: {mono: {gausians: 5}}\ntraining_rate: 1\n")
    with pytest.raises(Speech3Error) as caught:
        load_config(RecipeConfig, recipe)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and all(line.startswith(f"{recipe}: unknown key ") for line in lines)
    by_key = {line.split("'")[1]: line.partition("known here: ")[2].split(", ") for line in lines}
    assert by_key.keys() == {"sed", "training_rate", "hmm.mono.gausians"}
    assert "seed" in by_key["sed"] and "training" in by_key["sed"] and "width" not in by_key["sed"]
    assert "gaussians" in by_key["hmm.mono.gausians"] and "seed" not in by_key["hmm.mono.gausians"]


def test_unknown_keys_of_presets_name_the_preset(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text("family: dnn\nwdth: 3\n")
    recipe.write_text(RECIPE.replace("dnn_small", str(tmp_path / "wide.yaml")))
    with pytest.raises(Speech3Error, match=r"wide\.yaml: unknown key 'wdth'; known here: .*width"):
        load_config(RecipeConfig, recipe)
    recipe.write_text(RECIPE.replace("dnn_small", "dnn_smal"))
    with pytest.raises(SettingError, match="dnn_smal"):
        load_config(RecipeConfig, recipe)


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        ({"width": -1}, "width", "greater than or equal to 0"),
        ({"family": "rnn"}, "family", "'dnn'"),
        ({"family": {"dnn": 1}}, "family", "'dnn'"),
        ({"dropout": "much"}, "dropout", "number"),
        ({"layers": 2.5}, "layers", "integer"),
    ],
)
def test_wrong_values_name_file_key_and_value(values: dict[str, object], key: str, message: str) -> None:
    with pytest.raises(
        Speech3Error, match=rf"^here\.yaml: {key}: .*{message}.*\(got {next(iter(values.values()))!r}\)$"
    ):
        parse(ModelConfig, values, "here.yaml")


@pytest.mark.parametrize("key", ["learning_rate", "asgd.adagrad", "asgd.warm_start", "simulation.sync_s"])
def test_numbers_are_finite(key: str) -> None:
    values: dict[str, object] = {}
    place, *names = key.split(".")
    values[place] = {names[0]: float("inf")} if names else float("inf")
    with pytest.raises(Speech3Error, match=rf"^here\.yaml: {re.escape(key)}: .*finite number \(got inf\)"):
        parse(TrainingConfig, values, "here.yaml")


def test_what_is_required_is_named(recipe: Path) -> None:
    recipe.write_text("corpus: digits\n")
    with pytest.raises(Speech3Error, match=r"recipe\.yaml: lm: Field required"):
        load_config(RecipeConfig, recipe)
    with pytest.raises(SettingError, match=r"(?s)x: frames"):
        parse(TrainConfig, {}, "x")


def test_files_that_are_no_mappings(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for content, message in (
        (b"- a\n", "expected `key: value` lines, found list"),
        (b"", "expected .* found NoneType"),
        (b"a: [1\n", "not valid YAML"),
        (b"a: \xff\n", "not UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=rf"a\.yaml:(1:)? {message}"):
            read_yaml(path)
    with pytest.raises(Speech3Error, match=r"b\.yaml: no such file"):
        read_yaml(tmp_path / "b.yaml")
    with pytest.raises(Speech3Error, match="is a directory"):
        read_yaml(tmp_path)


def test_overrides_reach_into_presets_and_defaults(recipe: Path) -> None:
    overrides = [
        "model.width=64",
        "training.learning_rate=1e-3",
        "hmm.mono.gaussians=9",
        "seed=4",
        "lm.order=3",
        "decode.acoustic_scales=[0.1, 0.2]",
    ]
    config = load_config(RecipeConfig, recipe, overrides)
    small = load_preset(ModelConfig, "models", "dnn_small")
    assert config.model == small.model_copy(update={"width": 64}) and small.width != 64
    assert config.training == load_preset(TrainingConfig, "training", "sgd").model_copy(update={"learning_rate": 1e-3})
    assert config.hmm.mono.gaussians == 9 and config.hmm.tri == HmmConfig().tri
    assert (config.seed, config.lm.order, config.decode.acoustic_scales) == (4, 3, (0.1, 0.2))
    assert recipe.read_text() == RECIPE


def test_an_override_may_name_another_preset(recipe: Path) -> None:
    config = load_config(RecipeConfig, recipe, ["model=dnn", "model.layers=1"])
    assert config.model == load_preset(ModelConfig, "models", "dnn").model_copy(update={"layers": 1})


def test_a_sample_rate_in_khz_is_refused() -> None:
    with pytest.raises(Speech3Error, match=r"sample_frequency: .*1000 \(got 16\)"):
        parse(FeatureConfig, {"sample_frequency": 16}, "here.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "^seed: an override has the form key=value"),
        ("seed.x=1", r"^seed\.x=1: seed is a value, not a group of keys"),
        ("features.kind=mfcc", r"^features\.kind=mfcc: features is a value"),
        ("model.wdth=3", r"unknown key 'model\.wdth'; known here: .*width"),
        ("sed=3", "unknown key 'sed'"),
        ("seed=many", r"seed: .*integer.*\(got 'many'\)"),
        ("sample_rate=16", r"sample_rate: .*greater than or equal to 1000 \(got 16\)"),
        ("lm.arpa=x.arpa", "lm: .*exactly one of order, arpa, grammar"),
        ("model=dnn_smal", "neither a YAML file nor a preset"),
        ("seed=[1", r"^seed=\[1: not valid YAML"),
        ("=3", "^=3: an override has the form key=value"),
    ],
)
def test_bad_overrides(recipe: Path, override: str, message: str) -> None:
    recipe.write_text(RECIPE + "seed: 1\nfeatures: fbank40\n")
    with pytest.raises(Speech3Error, match=message):
        load_config(RecipeConfig, recipe, [override])


def test_exactly_one_language_model() -> None:
    assert LmConfig(order=2, text="x").text == "x" and LmConfig(arpa="x").order is None
    for values in (
        {},
        {"text": "x"},
        {"order": 2, "arpa": "x"},
        {"order": 2, "grammar": "one-word"},
        {"order": 1, "arpa": "x", "grammar": "one-word"},
    ):
        with pytest.raises(SettingError, match=r"x\.yaml"):
            parse(LmConfig, values, "x.yaml")


def test_features_that_contradict_themselves() -> None:
    assert parse(FeatureConfig, {"kind": "mfcc"}, "x").use_energy  # Kaldi's default for MFCC, but not for fbank
    assert not parse(FeatureConfig, {"kind": "fbank"}, "x").use_energy
    assert not parse(FeatureConfig, {"kind": "mfcc", "use_energy": False}, "x").use_energy
    for values, message in (
        ({"kind": "mfcc", "num_ceps": 24}, "num_ceps 24 must not exceed num_mel_bins 23"),
        ({"norm_means": False, "norm_vars": True}, "norm_vars needs norm_means"),
        ({"frame_shift": 30.0}, "frame_shift must not exceed frame_length"),
    ):
        with pytest.raises(Speech3Error, match=message):
            parse(FeatureConfig, values, "x")


def test_configs_do_not_change() -> None:
    with pytest.raises(Exception, match="frozen"):
        DecodeConfig().beam = 3.0


def test_a_group_or_preset_comes_before_its_keys_wherever_it_stands() -> None:
    path = shipped("recipes") / "any" / "recipe.yaml"
    for overrides in (["lfmmi.features=fbank40", "lfmmi={}"], ["lfmmi={}", "lfmmi.features=fbank40"]):
        lfmmi = load_config(RecipeConfig, path, overrides).lfmmi
        assert lfmmi and (lfmmi.features, lfmmi.passes, lfmmi.min_minutes) == ("fbank40", 0, 10)  # the file's own
    for overrides in (["lfmmi.leaves=9", "lfmmi=null"], ["lfmmi=null", "lfmmi.leaves=9"]):
        assert load_config(RecipeConfig, path, overrides).lfmmi is None
    config = load_config(RecipeConfig, path, ["model.width=99", "training.max_epochs=3", "model=cnn", "training=sgd"])
    assert config.model.model_dump()["width"] == 99 and config.training.max_epochs == 3
    config = load_config(RecipeConfig, path, ["untranscribed.confidence=0.3", "untranscribed=rec"])
    assert config.untranscribed and config.untranscribed.confidence == 0.3


@pytest.mark.parametrize("speeds", ["[0]", "[1.0]", "[0.9, 0.9]", "[3]"])
def test_bad_speeds_are_refused(speeds: str) -> None:
    with pytest.raises(SettingError, match=r"speed_perturb=\[.*"):
        load_config(RecipeConfig, shipped("recipes") / "any" / "recipe.yaml", [f"speed_perturb={speeds}"])


def test_an_lstm_is_trained_as_recurrent_says(recipe: Path) -> None:
    lstm = load_preset(TrainingConfig, "training", "lstm")
    assert load_config(RecipeConfig, recipe).training == load_preset(TrainingConfig, "training", "sgd")
    assert load_config(RecipeConfig, recipe, ["model=cnn"]).training == load_preset(TrainingConfig, "training", "sgd")
    for overrides in (["model=lstm"], ["model.family=lstm", "model={family: lstm}"]):
        assert load_config(RecipeConfig, recipe, overrides).training == lstm
    changed = load_config(RecipeConfig, recipe, ["training.max_epochs=3", "model=lstm", "training.minibatch=80"])
    assert changed.training == lstm.model_copy(update={"max_epochs": 3, "minibatch": 80})
    assert load_config(RecipeConfig, recipe, ["training=asgd", "model=lstm"]).training.world == "shared"
    own = load_config(RecipeConfig, recipe, ["model=lstm", "recurrent.learning_rate=0.7"])
    assert own.training == lstm.model_copy(update={"learning_rate": 0.7})
    recipe.write_text(RECIPE + "recurrent: {minibatch: 77}\n")
    assert load_config(RecipeConfig, recipe, ["model=blstm", "training.max_epochs=2"]).training == TrainingConfig(
        minibatch=77, max_epochs=2
    )
    assert load_config(RecipeConfig, recipe, ["model=lstm", "recurrent.max_epochs=2"]).training.minibatch == 77
    own = load_config(RecipeConfig, recipe, ["model=lstm", "training.asgd.momentum=0.5"])
    assert own.training.asgd.momentum == 0.5 and own.recurrent == TrainingConfig(minibatch=77)
    recipe.write_text(RECIPE.replace("dnn_small", "lstm"))  # its own model is an LSTM, so its training is used
    for overrides in ([], ["model=blstm"]):
        assert load_config(RecipeConfig, recipe, overrides).training == load_preset(TrainingConfig, "training", "sgd")


def test_a_network_with_time_delay_layers_is_trained_as_time_delay_says(recipe: Path) -> None:
    chunks = load_preset(TrainingConfig, "training", "chunks")
    for model in ("cnn_tdnn", "tdnn", "tdnn_lstm"):
        assert load_config(RecipeConfig, recipe, [f"model={model}"]).training == chunks
    changed = load_config(RecipeConfig, recipe, ["time_delay.minibatch=80", "model=cnn_tdnn", "training.max_epochs=3"])
    assert changed.training == chunks.model_copy(update={"max_epochs": 3, "minibatch": 80})
    assert load_config(RecipeConfig, recipe, ["time_delay=lstm", "model=tdnn"]).training.minibatch == 640
    assert load_config(RecipeConfig, recipe, ["training=sgd", "model=tdnn"]).training.optimizer == "sgd"
    recipe.write_text(RECIPE.replace("dnn_small", "lstm"))  # its training is meant for an LSTM
    assert load_config(RecipeConfig, recipe, ["model=tdnn_lstm"]).training == chunks
    recipe.write_text(RECIPE.replace("dnn_small", "tdnn"))  # and this one for a network with time-delay layers
    assert load_config(RecipeConfig, recipe, ["model=tdnn_lstm"]).training.optimizer == "sgd"


def test_time_delay_layers_get_their_outputs_from_the_objective(tmp_path: Path) -> None:
    for family in ("tdnn", "cnn_tdnn", "tdnn_lstm"):
        files = {"frames": "f", "hmm": "h", "model": {"family": family}}
        for training, expected in (("lfmmi", (3, True)), ("chunks", (1, None))):
            values = {**files, "training": load_preset(TrainingConfig, "training", training).model_dump()}
            model = parse(TrainConfig, values, "x").model
            assert (model.subsampling or 1, model.two_outputs) == expected, (family, training)
            assert (model.left_context, model.right_context) == (0, 0)


def test_faults_of_recurrent_are_named_as_those_of_training(recipe: Path) -> None:
    recipe.write_text(RECIPE + "recurrent: {minibatch: -1}\n")
    with pytest.raises(Speech3Error, match=r"^\S+: recurrent\.minibatch: Input should be .* \(got -1\)$"):
        load_config(RecipeConfig, recipe)
    recipe.write_text(RECIPE + "recurrent: {minibach: 7}\n")
    with pytest.raises(SettingError, match=r"^\S+: unknown key 'recurrent\.minibach'"):
        load_config(RecipeConfig, recipe)


def test_unknown_keys_of_a_family_are_named_with_its_own() -> None:
    convolutions = {"convolutions": [{"maps": 3, "kernel": [3, 3], "stride": 2}]}
    for values, key, known in (
        ({"family": "lstm", "width": 3}, "width", "cell_clip"),
        ({"family": "cnn", **convolutions}, "convolutions.0.stride", "kernel, maps, pool$"),
        ({"family": "tdnn", **convolutions}, "convolutions", "bottleneck, bottlenecks, bypass"),
    ):
        with pytest.raises(Speech3Error, match=rf"(?m)^here: unknown key '{key}'; known here: .*{known}"):
            parse(ModelConfig, values, "here")
        values = {"frames": "x", "hmm": "y", "model": values, "training": {}}
        with pytest.raises(Speech3Error, match=rf"(?m)^here: unknown key 'model.{key}'; known here: .*{known}"):
            parse(TrainConfig, values, "here")


def test_a_model_config_is_one_of_its_family_however_it_is_made() -> None:
    assert ModelConfig(family="cnn", channels=1) == CnnConfig(channels=1)
    assert ModelConfig(width=7) == DnnConfig(width=7)
    clipped_not = LstmConfig(cell_clip=float("inf"), bidirectional=True)
    assert ModelConfig.model_validate(clipped_not.model_dump(mode="json")) == clipped_not
    assert LstmConfig.model_validate_json(clipped_not.model_dump_json()) == clipped_not
    whole = TrainConfig(frames="x", hmm="y", model=clipped_not, training=TrainingConfig())
    assert TrainConfig.model_validate_json(whole.model_dump_json()) == whole
    assert whole.model_copy(deep=True) == whole


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, r"this config changes nothing: set one of the keys \*_prob, or speed"),
        ({"noise_prob": 0.8, "babble_prob": 0.3}, r"noise_prob 0\.8 and babble_prob 0\.3 add up to more than 1"),
        ({"noise_prob": 1, "noise_snr_db": [20, 5]}, r"noise_snr_db: \[20, 5\] is reversed"),
        ({"volume_prob": 1, "noise_dir": "musan"}, "noise_dir is never used: set noise_prob, too"),
        ({"noise_prob": 1, "rir_dir": "rirs"}, "rir_dir is never used: set reverb_prob, too"),
        ({"reverb_prob": 1, "rt60_s": [0, 1]}, r"rt60_s: \[0, 1\]: values must be between 0\.05 and 10 s"),
        ({"babble_prob": 1, "babble_voices": [0, 3]}, "babble_voices: 0: at least one voice is needed"),
        ({"speed": [1.0, 3.0]}, r"speed\.1: Input should be less than or equal to 2 \(got 3\.0\)"),
        ({"speed": 0.9}, "speed: Input should be a list"),
        ({"telephone_prob": -0.1}, "telephone_prob: Input should be greater than or equal to 0"),
    ],
)
def test_augmentation_that_contradicts_itself(values: dict[str, object], told: str) -> None:
    with pytest.raises(Speech3Error, match=rf"x\.yaml: .*{told}"):
        parse(AugmentConfig, values, "x.yaml")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("tier=*CHI", "*CHI"), ("tier=%mor", "%mor"), ("tier=ref: gls", "ref: gls"), ("tier=1", "1"), ("tier=#1", "#1"),
        ("lang=no", "no"), ("lang=null", None), ("lang=", None), ("tier='a: b'", "a: b"), ("lm.text=2024", "2024"),
        ("hmm.features=1", "1"), ("untranscribed.recordings=on", "on"), ("lfmmi.features=no", "no"),
    ],
)  # fmt: skip
def test_keys_of_strings_take_what_is_written(recipe: Path, override: str, value: str | None) -> None:
    extra = ["lfmmi={}", "untranscribed=more", override]
    found: object = load_config(RecipeConfig, recipe, extra)
    for key in override.partition("=")[0].split("."):
        found = getattr(found, key)
    assert found == value
