"""Classifiers of frozen features that the default is compared with, and their equations."""
