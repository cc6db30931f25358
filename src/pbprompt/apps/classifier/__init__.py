"""Classifiers with scikit-learn's verbs."""

from pbprompt.apps.classifier.evidence_classifier import EvidenceClassifier
from pbprompt.apps.classifier.prompt_classifier import PromptClassifier

__all__ = ["EvidenceClassifier", "PromptClassifier"]
