"""A classifier with scikit-learn's verbs."""

from pbprompt.apps.classifier.prompt_classifier import PromptClassifier

__all__ = ["PromptClassifier"]
