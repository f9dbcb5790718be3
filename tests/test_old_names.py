"""Names of the last release keep working; those that have moved say where they are now."""

from __future__ import annotations

import importlib
import warnings

import pytest

OLD = {
    "attacks": "LOSSES Attacked Averaged Ball Common Precision Victim apgd_eot "
    "ATTACKS attack_title base_of check_peer check_settings detector_aware eot_pgd "
    "freeze frozen get_attack judge library_version official_adaptive paper_adaptive "
    "peer_attack peer_names pgd random_targets run_attack square_eot transfer",
    "datasets": "EMBEDDED FOLDER SOURCES Dataset LabelledImages Shape Source as_tensors check_name "
    "data_root experiment_points load_dataset random_order shape_of split",
    "defenses": "PRESETS CombinedInference CropResize GaussianNoise MixupInference Options "
    "DEFENSES Preset RandomRotation RandomizedInference ResizePad StochasticModule gap get_preset "
    "images_at_once make_defense mean_prediction read_preset settings_of within_memory "
    "write_preset",
    "evaluation": "SCHEMA Accuracy Check Column Experiment Listener RobustAccuracy RowSpec Spec "
    "Tuned Work analyses check_attack check_spec collect evaluate load_spec measure_speeds "
    "paired_difference parse_spec plan shipped_specs tune wilson worst_case",
    "models": "CONFIG MODELS WEIGHTS Normalized check_pretrained config_of create_model "
    "fill_weights from_pretrained import_model load_checkpoint load_weights read_checkpoint "
    "save_checkpoint save_pretrained shipped_models weights_file",
    "reporting": "ConsoleListener html write_comparison write_report write_results",
    "theory": "Analysis Bounds Column Condition Counts Estimate Kind Linearity Mechanisms "
    "Predictions Terms analyze detection_gap detection_gap_of improves_robustness "
    "keeps_clean_predictions linearity ric_bounds table_1",
    "training": "BEST LAST OBJECTIVES Epoch Recipe in_precision_of learning_rate make_fabric "
    "one_process train",
}


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in OLD for name in OLD[package].split()]
)
def test_a_public_name_of_the_last_release_is_still_there(package, name):
    module = importlib.import_module(f"mixup_inference.{package}")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert getattr(module, name) is not None
    assert {w.category for w in seen} <= {DeprecationWarning}
    assert (name in module.__all__) != bool(seen)


def test_a_name_that_never_was():
    for package in OLD:
        module = importlib.import_module(f"mixup_inference.{package}")
        with pytest.raises(AttributeError, match="nothing"):
            module.nothing  # noqa: B018
