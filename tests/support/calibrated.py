"""What a predictor is calibrated to by labelled features."""

from pbprompt.model.calibration import Calibration, calibrate
from pbprompt.model.predictor import Predictor, predict_features
from pbprompt.vision.features.cache import Features


def calibrated_by(predictor: Predictor, features: Features) -> Calibration:
    answers = predict_features(predictor, features)
    return calibrate(predictor, answers.probabilities, features.labels, familiarity=answers.familiarity)
